"""A journal the bash tool wrote, held to its facts; and ours, held to what that tool reads."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.tools import needs

from ropewalk.gitlog.compat.entries import parse_entry
from ropewalk.gitlog.compat.transfer import export_to_compat, import_from_compat
from ropewalk.gitlog.core.commit import parse_message
from ropewalk.gitlog.core.layout import LOG_NOTES, SHIPLOG
from ropewalk.gitlog.core.notes import read_note
from ropewalk.gitlog.core.objects import EMPTY_TREE, Oid, parse_commit
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.verify.log_check import verify_log
from ropewalk.kernel import jcs

VECTORS = Path(__file__).resolve().parents[2] / "vectors" / "git-shiplog"
FACTS = json.loads((VECTORS / "facts.json").read_text(encoding="utf-8"))
NAMESPACES = {"prod": "prod", "staging": "staging", "QA": "qa"}
# Found once and for all: an importer that gives other commits has changed its format.
HEADS = {
    "refs/gatos/shiplog/prod/head": "a0e5e789f3b54e35a8b5c191aa410c724ebd9678",
    "refs/gatos/shiplog/qa/head": "d18b8a0432d3cbfbb0e7ec1bf089f04601206f0f",
    "refs/gatos/shiplog/staging/head": "aba3dd3d2d38ef48b5f4b598c0cad23e82c9fe4d",
}


def git(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, check=True)
    return done.stdout.decode()


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    git("clone", "-q", "--mirror", str(VECTORS / "journal.bundle"), "journal.git", cwd=tmp_path)
    return tmp_path / "journal.git"


def test_every_entry_is_what_the_facts_say(mirror):
    with open_repository(mirror) as log:
        report = import_from_compat(log)
        assert (report.imported, report.skipped, report.problems) == (16, 0, [])
        events = {e.payload["source"]["commit"]: e for ns in NAMESPACES.values() for e in log.events(ns)}
        assert len(events) == len(FACTS["entries"]) == 16
        for fact in FACTS["entries"]:
            event = events[fact["commit"]]
            trailer = event.payload["trailer"]
            commit = parse_commit(log.store.get(event.commit)[1])
            native = parse_message(commit.message).trailer
            assert event.payload["source"]["ref"] == fact["ref"]
            assert event.type == f"deployment.{fact['status']}"
            assert event.envelope["refs"] == {"trailer": fact["trailer_jcs_blake3"]}
            assert len(jcs.encode(trailer)) == fact["trailer_jcs_len"]
            assert (trailer["seq"], trailer["env"], trailer["ts"]) == (fact["seq"], fact["env"], fact["ts"])
            assert (trailer["what"]["service"], trailer["why"]["reason"]) == (fact["service"], fact["reason"])
            assert trailer["previous_anchor"] == fact["previous_anchor"]
            assert ("run" in trailer) == fact["has_run"]
            assert (commit.author.name, commit.author.mail, commit.author.time_s) == (
                fact["author_name"],
                fact["author_email"],
                fact["author_time"],
            )
            assert event.payload["source"]["signature"] == ("good" if fact["signed"] else "none")
            assert native is not None and native["seq"] == fact["seq"] and native["status"] == fact["status"]
            note = read_note(log.store, LOG_NOTES, event.commit)
            if fact["note_blob"] is None:
                assert note is None
            else:
                assert note is not None and len(note) == fact["note_bytes"]
                assert hashlib.sha256(note).hexdigest() == fact["note_sha256"]


def test_the_commits_are_the_same_on_every_machine_and_for_ever(mirror):
    with open_repository(mirror) as log:
        assert import_from_compat(log).refs == HEADS
        assert import_from_compat(log).refs == HEADS


def test_anchors_and_notes_come_along_and_trust_and_policy_are_named(mirror):
    with open_repository(mirror) as log:
        report = import_from_compat(log)
    assert report.notes == 5 and report.mapped == {"QA": "qa"}
    assert [(each["ref"], each["ns"]) for each in report.anchors] == [
        ("refs/_shiplog/anchors/prod", "prod"),
        ("refs/_shiplog/anchors/staging", "staging"),
    ]
    assert [each["ref"] for each in report.not_carried] == [
        "refs/_shiplog/policy/current",
        "refs/_shiplog/trust/root",
    ]


def test_a_plain_fetch_that_loses_the_notes_gives_the_same_events(mirror, tmp_path):
    git("init", "-q", "--bare", "other.git", cwd=tmp_path)
    git("fetch", "-q", str(mirror), "refs/_shiplog/*:refs/_shiplog/*", cwd=tmp_path / "other.git")
    with open_repository(tmp_path / "other.git") as log:
        report = import_from_compat(log)
    assert report.refs == HEADS and report.notes == 0


def test_git_and_our_verification_find_nothing_wrong(mirror):
    with open_repository(mirror) as log:
        import_from_compat(log)
        log.append("prod", {"type": "deploy.finished", "payload": {"n": 1}})
        export_to_compat(log, "prod")
        for ns in NAMESPACES.values():
            assert all(step.status != "failed" for step in verify_log(log.store, SHIPLOG, ns).steps)
    done = subprocess.run(["git", "fsck", "--full", "--strict"], cwd=mirror, capture_output=True, check=True)
    assert not re.search(rb"^(error|warning)", done.stderr, re.MULTILINE)
    shown = git("notes", "--ref", LOG_NOTES, "list", cwd=mirror)
    assert len(shown.splitlines()) == 5


# --- export ---

HEAD_LINES = (
    r"Deploy: \S.* → \S+",
    r"Reason: \S.* (\(.+\))?",
    r"Status: [A-Z_]+ \(\d+s\) @ \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    r"Seq:    \d+ \(parent (\(genesis\)|[0-9a-f]{7}), trust (\(unset\)|[0-9a-f]{7}), anchor (\(none\)|[0-9a-f]{7})\)",
    r"Author: \S+",
    r"Repo:   (\(none\)|[0-9a-f]{40})",
    "",
    r"---  # structured trailer for machines",
)


def messages(repository: Path, env: str) -> list[str]:
    oids = git("rev-list", "--reverse", f"refs/_shiplog/journal/{env}", cwd=repository).split()
    raws = [git("cat-file", "commit", oid, cwd=repository) for oid in oids]
    return [raw.partition("\n\n")[2] for raw in raws]


def check_shape(text: str) -> dict[str, Any]:
    """The form §3.2 of the tool's own commits has; the tests below also hold its real commits to this."""
    lines = text.split("\n")
    for pattern, line in zip(HEAD_LINES, lines, strict=False):
        assert re.fullmatch(pattern, line), (pattern, line)
    assert sum(line.startswith("---") for line in lines) == 1
    body = "\n".join(lines[len(HEAD_LINES) :])
    assert body.startswith("{\n  ") and body.endswith("\n}")  # no newline behind the brace
    found: dict[str, Any] = json.loads(body)
    assert body == json.dumps(found, indent=2, ensure_ascii=False)
    # What `validate-trailer` asks for, and what the tool itself always writes.
    assert found["env"] and found["ts"] and found["status"] and found["what"]["service"]
    assert type(found["when"]["dur_s"]) is int and found["version"] == 1
    return found


def test_the_shape_is_that_of_the_tools_own_commits(mirror):
    for env in NAMESPACES:
        for text in messages(mirror, env):
            check_shape(text)


def export_all(mirror: Path) -> None:
    """Export everything into journals that start anew."""
    for env in NAMESPACES:
        git("update-ref", "-d", f"refs/_shiplog/journal/{env}", cwd=mirror)
    with open_repository(mirror) as log:
        for ns in NAMESPACES.values():
            export_to_compat(log, ns)


def test_what_came_from_a_journal_goes_out_as_it_came(mirror):
    with open_repository(mirror) as log:
        import_from_compat(log)
    before = {env: messages(mirror, env) for env in NAMESPACES}
    export_all(mirror)
    moved = {"journal_parent", "previous_anchor", "ulid", "content_id", "envelope"}
    for env in NAMESPACES:
        after = messages(mirror, env)
        assert len(after) == len(before[env])
        for old, new in zip(before[env], after, strict=True):
            was, now = check_shape(old), check_shape(new)
            assert {k: v for k, v in was.items() if k not in moved} == {
                k: v for k, v in now.items() if k not in moved
            }
            # The lines for people differ in the commits they name, nowhere else.
            assert [line for line in old.split("\n")[:6] if not line.startswith("Seq:")] == [
                line for line in new.split("\n")[:6] if not line.startswith("Seq:")
            ]


def test_links_and_trees_are_those_the_receiving_hook_asks_for(mirror):
    with open_repository(mirror) as log:
        import_from_compat(log)
    export_all(mirror)
    trust = git("rev-parse", "refs/_shiplog/trust/root", cwd=mirror).strip()
    parent = None
    for seq, oid in enumerate(git("rev-list", "--reverse", "refs/_shiplog/journal/prod", cwd=mirror).split()):
        raw = git("cat-file", "commit", oid, cwd=mirror).encode()
        entry = parse_entry(Oid(oid), raw)
        assert entry.problems == () and entry.commit.tree == EMPTY_TREE
        assert entry.commit.author == entry.commit.committer
        assert (
            entry.trailer is not None and entry.trailer["seq"] == seq and entry.trailer["trust_oid"] == trust
        )
        assert entry.trailer["journal_parent"] == parent == next(iter(entry.commit.parents), None)
        parent = oid


@needs("jq")
def test_jq_prints_our_trailer_as_we_wrote_it(mirror):
    with open_repository(mirror) as log:
        import_from_compat(log)
        log.append(
            "prod", {"type": "x", "payload": {"a": [], "b": {}, "c": 1.5, "d": 'é\u2028\t"\\', "ü": None}}
        )
        export_to_compat(log, "prod")
    body = messages(mirror, "prod")[-1].partition("---  # structured trailer for machines\n")[2]
    done = subprocess.run(["jq", "-S", "."], input=body.encode(), capture_output=True, check=True)
    assert done.stdout.decode() == body + "\n"


def test_a_stranger_with_only_the_journal_gets_the_same_events(mirror, tmp_path):
    with open_repository(mirror) as log:
        import_from_compat(log)
        log.append("prod", {"type": "deploy.finished", "payload": {"n": 1.5, "t": "é"}})
        export_to_compat(log, "prod")
    export_all(mirror)
    git("init", "-q", "--bare", "other.git", cwd=tmp_path)
    git("fetch", "-q", str(mirror), "refs/_shiplog/*:refs/_shiplog/*", cwd=tmp_path / "other.git")
    with open_repository(mirror) as log, open_repository(tmp_path / "other.git") as other:
        assert import_from_compat(other).imported == 17
        assert import_from_compat(other).imported == 0
        for ns in NAMESPACES.values():
            assert [(e.ulid, e.content_id) for e in other.events(ns)] == [
                (e.ulid, e.content_id) for e in log.events(ns)
            ]


# --- signatures, beside git's own verdict ---


@needs("ssh-keygen")
@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_our_verdict_is_that_of_git_and_ssh_keygen(tmp_path, kind):
    from ropewalk.gitlog.compat.ssh_signatures import judge, parse_allowed_signers

    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(key), "-C", "ada"], check=True)
    roster = f"ada@example.test {key.with_suffix('.pub').read_text()}"
    (tmp_path / "allowed").write_text(roster)
    git("init", "-q", "--bare", "r.git", cwd=tmp_path)
    repository = tmp_path / "r.git"
    signing = (
        *("-c", "user.name=Ada", "-c", "user.email=ada@example.test", "-c", "gpg.format=ssh"),
        *("-c", f"user.signingkey={key}", "-c", f"gpg.ssh.allowedSignersFile={tmp_path / 'allowed'}"),
    )
    tree = git("hash-object", "-t", "tree", "-w", "/dev/null", cwd=repository).strip()
    oid = git(*signing, "commit-tree", "-S", "-m", "hello", tree, cwd=repository).strip()
    git(*signing, "verify-commit", oid, cwd=repository)
    raw = subprocess.run(
        ["git", "cat-file", "commit", oid], cwd=repository, capture_output=True, check=True
    ).stdout
    assert judge(raw, parse_allowed_signers(roster), 2_000_000_000) == "good"
    assert judge(raw, parse_allowed_signers(""), 2_000_000_000) == "untrusted"
    changed = raw.replace(b"\n\nhello", b"\n\nhellO")
    assert judge(changed, parse_allowed_signers(roster), 2_000_000_000) == "bad"
    forged = subprocess.run(
        ["git", "hash-object", "-t", "commit", "-w", "--stdin"],
        cwd=repository,
        input=changed,
        capture_output=True,
        check=True,
    ).stdout.decode()
    verdict = subprocess.run(
        ["git", *signing, "verify-commit", forged.strip()], cwd=repository, capture_output=True, check=False
    )
    assert verdict.returncode != 0
