"""Two people share logs through a bare remote: clone, pull, push, and the hook of the remote."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import Answer, living_in
from tests.waiting import Crew

import ropewalk
from ropewalk.errors import Conflict, Denied, Unverified
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import LOG_NOTES, MESSAGES, SHIPLOG
from ropewalk.gitlog.core.notes import read_note
from ropewalk.gitlog.core.objects import Oid
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.gitlog.repository.signing import set_anchor
from ropewalk.gitlog.sharing import exchange
from ropewalk.gitlog.sharing.exchange import pull, push
from ropewalk.gitlog.verify.log_check import verify_log

Person = Callable[..., Answer]


def git(*words: str | Path, cwd: Path | None = None) -> str:
    return subprocess.run(["git", *words], cwd=cwd, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def team(tmp_path: Path) -> Path:
    """A folder with a bare remote."""
    git("init", "-q", "--bare", tmp_path / "team.git")
    return tmp_path


def person(team: Path, name: str) -> Person:
    run = living_in(team)
    identity = {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": f"{name}@example.org"}
    assert run("clone", "team.git", name, env=identity).code == 0

    def act(*words: str, **more: Any) -> Answer:
        return run(*words, cwd=team / name, env=identity, **more)

    return act


def note(text: str) -> bytes:
    return json.dumps({"type": "note", "payload": {"text": text}}).encode()


def append(who: Person, text: str, ns: str = "prod") -> None:
    answer = who("shiplog", "append", "--ns", ns, "--file", "-", stdin=note(text))
    assert answer.code == 0, answer.err


def texts(who: Person, ns: str = "prod") -> list[str]:
    page = who("shiplog", "read", "--ns", ns, "--json").json
    return [event["envelope"]["payload"]["text"] for event in page["events"]]


@pytest.mark.parametrize(
    ("words", "made"), [(["../team.git"], "team"), (["../team.git/", "--bare"], "team.git")]
)
def test_clone_folder_is_the_last_part_of_the_url(team: Path, words: list[str], made: str) -> None:
    (team / "desk").mkdir()
    answer = living_in(team)("clone", *words, cwd=team / "desk")
    assert answer.code == 0 and (team / "desk" / made).is_dir(), answer.err


def test_push_reappends_ours_behind_theirs_once(team):
    ada, bob = person(team, "ada"), person(team, "bob")
    append(ada, "first")
    assert ada("push", "--json").json == {
        "pushed": [{"log": "shiplog/prod", "events": 1}],
        "reappended": 0,
        "pulled": [],
        "diverged": [],
    }
    assert bob("pull", "--json").json["pulled"] == [{"log": "shiplog/prod", "events": 1}]
    append(ada, "ada's")
    append(bob, "bob's")
    assert ada("push").code == 0
    refused = bob("push", "--no-rebase", "--json")
    assert (refused.code, refused.json["code"]) == (4, "AppendRejected")
    assert texts(bob) == ["first", "bob's"]
    stays = bob("pull")
    assert stays.code == 0 and "re-appends your events" in stays.err and texts(bob) == ["first", "bob's"]
    answer = bob("push")
    assert answer.code == 0 and "re-appended 1 event behind those of origin" in answer.err
    assert bob("push", "--json").json["pushed"] == []
    assert ada("pull").code == 0
    assert texts(ada) == texts(bob) == ["first", "ada's", "bob's"]
    for who in (ada, bob):
        assert who("verify").code == 0
    last = bob("shiplog", "read", "--ns", "prod", "--json").json["events"][-1]
    assert last["envelope"]["refs"]["displaced"].startswith("blake3:")
    kept = git("for-each-ref", "refs/ropewalk/displaced/", cwd=team / "bob")
    assert kept.count("shiplog/prod/") == 1
    assert "refs/ropewalk" not in git("for-each-ref", cwd=team / "team.git")


def refused_push(team: Path, name: str) -> Conflict:
    """Push in this process, where the attempts can be fewer, and return why it failed."""
    with open_repository(team / name) as log, pytest.raises(Conflict) as caught:
        push(log, "origin", who=name)
    return caught.value


def test_push_names_a_lock_that_was_left_on_the_remote(team, monkeypatch):
    """git says "cannot lock ref", as it does when another pusher is faster; nobody is, and waiting does not help."""
    monkeypatch.setattr(exchange, "ATTEMPTS_MAX", 2)
    ada = person(team, "ada")
    append(ada, "first")
    lock = team / "team.git" / "refs/gatos/shiplog/prod/head.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    refused = refused_push(team, "ada")
    assert "kept a ref locked" in refused.detail
    assert "refs/gatos/shiplog/prod/head.lock there" in refused.detail
    assert "a stopped one left the file" in refused.advice_now
    lock.unlink()
    assert ada("push").code == 0


def test_locks_are_found_in_linear_time():
    """A remote writes these lines; two megabytes of the beginning of a message took minutes, in each attempt."""
    line = "error: cannot lock ref 'x': Unable to create '/it's/x.lock': File exists."
    since = time.monotonic()
    assert exchange._locks(f"remote: Unable to create '\n{line}\n") == {"/it's/x.lock"}
    assert exchange._locks("Unable to create '" * 100_000) == set()
    assert time.monotonic() - since < 5


def test_push_names_no_lock_of_its_last_attempt_alone(team, monkeypatch):
    """Another pusher is faster first, and then holds the lock: to remove that would do damage."""
    monkeypatch.setattr(exchange, "ATTEMPTS_MAX", 2)
    for name in ("ada", "bob"):
        append(person(team, name), name)
    ref, remote = "refs/gatos/shiplog/prod/head", team / "team.git"
    git("push", "-q", "origin", f"{ref}:refs/heads/waiting", cwd=team / "bob")
    hook = team / "ada" / ".git" / "hooks" / "pre-push"  # runs once git has read the refs of the remote
    hook.parent.mkdir(exist_ok=True)
    race = f"git --git-dir='{remote}' update-ref {ref} refs/heads/waiting"
    hook.write_text(
        f"#!/bin/sh\nif test -e '{remote / ref}'; then : > '{remote / ref}.lock'; else {race}; fi\n"
    )
    hook.chmod(0o755)
    refused = refused_push(team, "ada")
    assert (remote / f"{ref}.lock").exists()
    assert "moved during all of 2 attempts" in refused.detail


def test_push_carries_output_of_runs_and_trailers(team):
    ada, bob = person(team, "ada"), person(team, "bob")
    for who, service in ((ada, "web"), (bob, "api")):
        done = who("shiplog", "run", "--ns", "prod", "--service", service, "--", "echo", f"out of {service}")
        assert done.code == 0
        assert who("push").code == 0
    assert ada("pull").code == 0
    for who in (ada, bob):
        rows = who("shiplog", "ls", "--json").json["events"]
        assert [row["service"] for row in rows] == ["api", "web"]
        for row in rows:
            shown = who("shiplog", "show", row["ulid"], "--json").json
            assert shown["note"] == f"out of {row['service']}\n"
        assert who("verify").code == 0


def test_push_carries_messages_with_attachments(team):
    ada, bob = person(team, "ada"), person(team, "bob")
    for name, who in (("ada", ada), ("bob", bob)):
        with open_repository(team / name) as log:
            from ropewalk.kernel.digest import content_id

            raw = name.encode()
            draft = Draft(
                {"type": "job", "payload": {"by": name}, "refs": {"file": content_id(raw)}},
                attachments={"file.bin": raw},
            )
            log.append_all("jobs/pending", [draft], layout=MESSAGES)
        assert who("push").code == 0
    assert ada("pull").code == 0
    for who in (ada, bob):
        found = who("messages", "read", "--topic", "jobs/pending", "--json").json["messages"]
        assert len(found) == 2
        assert who("verify").code == 0


def test_pushers_at_once_lose_nothing(team):
    people = {name: person(team, name) for name in ("ada", "bob", "cyd")}

    def work(name: str) -> None:
        for number in range(3):
            append(people[name], f"{name} {number}")
            answer = people[name]("push")
            assert answer.code == 0, answer.err

    with Crew(3) as crew:
        for each in [crew.submit(work, name) for name in people]:
            each.result(100)
    expected = sorted(f"{name} {number}" for name in people for number in range(3))
    for who in people.values():
        assert who("pull").code == 0
        assert sorted(texts(who)) == expected
        assert who("verify").code == 0


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def dying_at(log: GitRepository, count: int) -> Iterator[None]:
    """Let the `count`-th change of a ref be the last thing that the process does not do."""
    left = [count]

    def counted(act: Callable[..., None]) -> Callable[..., None]:
        def call(*given: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            act(*given)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("move_head", "drop_head"):
            patch.setattr(log.store, name, counted(getattr(log.store, name)))
        yield


def test_killed_push_is_finished_by_the_next(tmp_path):
    """A push that dies before any of its ref changes leaves nothing lost and nothing twice."""
    for count in range(1, 40):
        folder = tmp_path / str(count)
        git("init", "-q", "--bare", folder / "team.git")
        for name in ("ada", "bob"):
            git("clone", "-q", folder / "team.git", folder / name)
        with open_repository(folder / "ada") as ada:
            ada.append("prod", {"type": "t", "payload": {"by": "ada"}})
            push(ada, "origin", who="ada")
        with open_repository(folder / "bob") as bob:
            receipt = bob.append("prod", {"type": "t", "payload": {"by": "bob"}})
            from ropewalk.gitlog.core.notes import add_note

            add_note(bob.store, LOG_NOTES, receipt.commit, b"output", bob.author(bob.now_ms()))
            died = False
            try:
                with dying_at(bob, count):
                    push(bob, "origin", who="bob")
            except Killed:
                died = True
        with open_repository(folder / "bob") as bob:
            bob.append("prod", {"type": "t", "payload": {"by": "bob, later"}})  # before the push is finished
            push(bob, "origin", who="bob")
            events = {event.payload["by"]: event for event in bob.read("prod").events}
            assert sorted(events) == ["ada", "bob", "bob, later"], count
            assert bob.read("prod").events[0] == events["ada"], count
            assert read_note(bob.store, LOG_NOTES, Oid(events["bob"].commit)) == b"output", count
            assert verify_log(bob.store, SHIPLOG, "prod").ok, count
            assert not bob.store.heads("refs/ropewalk/reappend/")
        with open_repository(folder / "ada") as ada:
            pull(ada, "origin", who="ada")
            assert len(ada.read("prod").events) == 3, count
        if not died:
            assert count > 5
            return
    pytest.fail("the push never ended")


def test_anchors_and_cursors_of_displaced_events(team):
    ada, bob = person(team, "ada"), person(team, "bob")
    append(ada, "first")
    with open_repository(team / "ada") as log:
        set_anchor(log, "prod", label="kept")
    assert ada("push").code == 0 and bob("pull").code == 0
    append(ada, "ada's")
    append(bob, "bob's")
    with open_repository(team / "bob") as log:
        set_anchor(log, "prod", label="of a displaced head")
    head = git("rev-parse", "refs/gatos/shiplog/prod/head", cwd=team / "bob").strip()
    assert bob("shiplog", "checkpoint", "set", "--group", "g", "--ns", "prod", "--commit", head).code == 0
    assert ada("push").code == 0
    answer = bob("push")
    assert answer.code == 0 and "dropped 1 that spoke of displaced events" in answer.err
    assert ada("pull").code == 0
    for who in (ada, bob):
        labels = [row["label"] for row in who("shiplog", "anchor", "ls", "--json").json["anchors"]]
        assert labels == ["kept"]
        (row,) = who("consumer", "lag", "--json").json["consumers"]
        assert row["behind"] == 2  # nothing is missed; bob's event comes twice
        assert who("verify").code == 0


def test_pull_refuses_events_that_do_not_verify(team):
    ada, bob = person(team, "ada"), person(team, "bob")
    append(ada, "first")
    assert ada("push").code == 0
    tree = git("rev-parse", "refs/gatos/shiplog/prod/head^{tree}", cwd=team / "team.git").strip()
    wrong = ["-c", "user.name=x", "-c", "user.email=x@x", "commit-tree", tree, "-m", "no event"]
    commit = git(*wrong, "-p", "refs/gatos/shiplog/prod/head", cwd=team / "team.git").strip()
    git("update-ref", "refs/gatos/shiplog/prod/head", commit, cwd=team / "team.git")
    answer = bob("pull", "--json")
    assert (answer.code, answer.json["code"]) == (Unverified.exit_code, "VerificationFailed")
    assert bob("shiplog", "read", "--ns", "prod").code == 3


def test_hook_refuses_rewritten_deleted_and_invalid_logs(team):
    ada = person(team, "ada")
    assert living_in(team)("hook", "install", "--repo", "team.git").code == 0
    script = (
        team / "team.git" / "hooks" / "pre-receive"
    )  # it starts the code under test, not what is installed
    source = Path(ropewalk.__file__).parents[1]
    script.write_text(script.read_text().replace("exec ", f"PYTHONPATH={source} exec "))
    append(ada, "first")
    append(ada, "second")
    assert ada("push").code == 0
    ref = "refs/gatos/shiplog/prod/head"
    for update, reason in (
        (f"+{ref}~1:{ref}", "history must not be rewritten"),
        (f":{ref}", "a log must not be deleted"),
    ):
        with pytest.raises(subprocess.CalledProcessError) as caught:
            git("push", "origin", update, cwd=team / "ada")
        assert f"ropewalk: {ref}: {reason}" in caught.value.stderr
    tree = git("rev-parse", f"{ref}^{{tree}}", cwd=team / "ada").strip()
    who = ["-c", "user.name=x", "-c", "user.email=x@x"]
    commit = git(*who, "commit-tree", tree, "-p", ref, "-m", "no event", cwd=team / "ada").strip()
    with pytest.raises(subprocess.CalledProcessError) as caught:
        git("push", "origin", f"{commit}:{ref}", cwd=team / "ada")
    assert "is not valid" in caught.value.stderr
    git("config", "ropewalk.signedLogs", "shiplog/*", cwd=team / "team.git")
    append(ada, "third")
    refused = ada("push", "--json")
    assert (refused.code, refused.json["code"]) == (Denied.exit_code, "PolicyDenied")
    assert "must have a signature" in refused.json["detail"]


def test_missing_log_names_the_remote_that_has_it(team):
    ada = person(team, "ada")
    append(ada, "first")
    assert ada("push").code == 0
    git("clone", "-q", "team.git", "plain", cwd=team)
    run = living_in(team)
    for advice in ("were never fetched: `ropewalk pull origin`", "has this log: `ropewalk pull origin`"):
        answer = run("shiplog", "read", "--ns", "prod", cwd=team / "plain")
        assert answer.code == 3 and advice in answer.err
        assert "set the refspecs of origin" in run("init", cwd=team / "plain").text or "has" in advice
        git("fetch", "-q", cwd=team / "plain")
    assert run("pull", cwd=team / "plain").code == 0
    assert run("shiplog", "read", "--ns", "prod", cwd=team / "plain").code == 0


def test_remotes_are_chosen_by_name(ropewalk, tmp_path):
    git("init", "-q", tmp_path / "alone")
    assert ropewalk("push", cwd=tmp_path / "alone").code == 3
    git("remote", "add", "upstream", "nowhere.git", cwd=tmp_path / "alone")
    answer = ropewalk("push", cwd=tmp_path / "alone")
    assert answer.code == 7 and "git fetch failed" in answer.err
    git("remote", "add", "other", "nowhere.git", cwd=tmp_path / "alone")
    assert ropewalk("push", cwd=tmp_path / "alone").code == 2
    wrong = ropewalk("push", "upstrem", cwd=tmp_path / "alone")
    assert wrong.code == 3 and "Did you mean upstream?" in wrong.err


def test_shallow_clone_says_what_it_needs(team):
    ada = person(team, "ada")
    for text in ("one", "two", "three"):
        append(ada, text)
    assert ada("push").code == 0
    run, folder = living_in(team), team / "shallow"
    git("init", "-q", folder)
    git("remote", "add", "origin", f"file://{team}/team.git", cwd=folder)
    ref = "refs/gatos/shiplog/prod/head"
    git(
        "fetch",
        "-q",
        "--depth",
        "1",
        "origin",
        f"{ref}:refs/ropewalk/remotes/origin/gatos/shiplog/prod/head",
        cwd=folder,
    )
    answer = run("pull", cwd=folder)
    assert answer.code == 0 or "git fetch --unshallow" in answer.err
    git("fetch", "-q", "--unshallow", "origin", ref, cwd=folder)
    assert run("pull", cwd=folder).code == 0
    found = run("shiplog", "read", "--ns", "prod", "--json", cwd=folder).json["events"]
    assert [event["envelope"]["payload"]["text"] for event in found] == ["one", "two", "three"]


def test_empty_listings_name_the_remote(team):
    ada = person(team, "ada")
    append(ada, "first")
    assert ada("push").code == 0
    git("clone", "-q", "team.git", "plain", cwd=team)
    for command in ("ls", "current"):
        answer = living_in(team)("shiplog", command, cwd=team / "plain")
        assert answer.code == 0 and "`ropewalk pull origin`" in answer.err


def test_partial_clone_fetches_whole_logs(team):
    ada = person(team, "ada")
    append(ada, "first")
    assert ada("push").code == 0
    git("config", "uploadpack.allowFilter", "true", cwd=team / "team.git")
    git("clone", "-q", "--filter=tree:0", f"file://{team}/team.git", "partial", cwd=team)
    run = living_in(team)
    assert run("init", cwd=team / "partial").code == 0
    git("fetch", "-q", cwd=team / "partial")  # brings the commits alone
    pulled = run("pull", cwd=team / "partial")
    assert pulled.code == 0, pulled.err
    append(ada, "second")
    assert ada("push").code == 0
    assert run("pull", cwd=team / "partial").code == 0
    assert run("verify", cwd=team / "partial").code == 0


def test_remote_is_found_from_every_folder(team):
    """Relative addresses start at the work tree, and variables of git that name another repository are ignored."""
    ada = person(team, "ada")
    git("remote", "set-url", "origin", "../team.git", cwd=team / "ada")
    (team / "ada" / "deep" / "er").mkdir(parents=True)
    append(ada, "first")
    strange = {"GIT_DIR": "/nowhere", "GIT_OBJECT_DIRECTORY": str(team / "objects"), "GIT_NAMESPACE": "other"}
    run = living_in(team)
    for place, words in ((team / "ada" / "deep" / "er", ("push",)), (team, ("--repo", "ada", "pull"))):
        done = run(*words, cwd=place, env=strange)
        assert done.code == 0, done.err
    assert "refs/gatos/shiplog/prod/head" in git("for-each-ref", cwd=team / "team.git")
    assert not (team / "objects").exists()


def test_push_refuses_mirrors_and_other_owners(team):
    ada = person(team, "ada")
    append(ada, "first")
    assert ada("push").code == 0
    git("clone", "-q", "--mirror", "team.git", "mirror.git", cwd=team)
    refused = living_in(team)("push", cwd=team / "mirror.git")
    assert refused.code == 4 and "each `git fetch` overwrites the logs here" in refused.err
    strange = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    foreign = living_in(team)("push", cwd=team / "ada", env=strange)
    assert foreign.code == 7 and "Only if you trust the owner" in foreign.err
    taken = living_in(team)("clone", "team.git", "ada")
    assert taken.code == 4 and "Name a new or empty folder." in taken.err
    git("init", "-q", "--bare", team / "closed.git")
    git("config", "receive.hideRefs", "refs/gatos", cwd=team / "closed.git")
    git("remote", "add", "closed", "../closed.git", cwd=team / "ada")
    hidden = ada("push", "closed")
    assert hidden.code == 6 and "deny updating a hidden ref" in hidden.err


def test_hook_install_refuses_another_hooks_path(team):
    git("config", "core.hooksPath", "/srv/hooks", cwd=team / "team.git")
    refused = living_in(team)("hook", "install", "--repo", "team.git")
    assert refused.code == 4 and "/srv/hooks" in refused.err
    assert not (team / "team.git" / "hooks" / "pre-receive").exists()


def test_reappended_deployment_keeps_its_time(ropewalk, tmp_path):
    assert ropewalk("init", "log.git").code == 0
    when = {"start_ts": "2024-05-01T11:59:00Z", "end_ts": "2024-05-01T12:00:00Z", "dur_s": 60}
    trailer = {"version": 1, "env": "prod", "status": "success", "what": {"service": "api"}, "when": when}
    (tmp_path / "trailer.json").write_text(json.dumps(trailer))
    event = {"type": "t", "payload": {}, "refs": {"displaced": "blake3:" + "0" * 64}}
    into = ("--repo", "log.git", "shiplog", "append", "--ns", "prod", "--file", "-")
    assert ropewalk(*into, "--trailer", "trailer.json", stdin=json.dumps(event).encode()).code == 0
    assert ropewalk(*into, stdin=note("no deployment")).code == 0
    (row,) = ropewalk("--repo", "log.git", "shiplog", "current", "--json").json["current"]
    assert row["time"] == "2024-05-01T12:00:00Z"
    newest, older = ropewalk("--repo", "log.git", "shiplog", "ls").text.splitlines()
    assert "success" not in newest and "success" in older
