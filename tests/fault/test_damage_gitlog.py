"""Damage a git log, append with a new process, verify: no receipted event is lost or replaced without an error."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import Answer, living_in, move_in

from ropewalk.gitlog.core.layout import LOG_NOTES, SHIPLOG, anchors_ref, consumer_ref

HEAD = SHIPLOG.head_ref("prod")
EVENTS = b"".join(b'{"type":"t","payload":{"n":%d}}\n' % n for n in range(3))
NOWHERE = b"d" * 40 + b"\n"
Damage = Callable[[Path], object]


def git(git_dir: Path, *arguments: str) -> str:
    command = ["git", f"--git-dir={git_dir}", "-c", "user.name=x", "-c", "user.email=x@y", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A repository with a bit of everything, and the receipts of its namespace `prod`."""
    folder = tmp_path_factory.mktemp("damage")
    run = living_in(folder)
    repo = {"ROPEWALK_REPO": str(folder / "log.git")}

    def do(*arguments: str, stdin: bytes = b"") -> Answer:
        done = run(*arguments[:2], "--json", *arguments[2:], stdin=stdin, env=repo)
        assert done.code == 0, done
        return done

    run("init", "log.git")
    lines = do("shiplog", "append", "--ns", "prod", "--jsonl", "--file", "-", stdin=EVENTS).text.splitlines()
    do("shiplog", "anchor", "create", "--ns", "prod")
    lines += do("shiplog", "run", "--ns", "prod", "--", "echo", "kept").text.splitlines()
    lines += do("shiplog", "append", "--ns", "prod", "--jsonl", "--file", "-", stdin=EVENTS).text.splitlines()
    receipts = [json.loads(line) for line in lines]
    do("shiplog", "checkpoint", "set", "--group", "g", "--ns", "prod", "--commit", receipts[0]["commit"])
    do("messages", "publish", "--topic", "jobs", "--file", "-", stdin=b'{"type":"t","payload":{}}')
    do("shiplog", "read", "--ns", "prod")
    return folder, receipts


def write(name: str, raw: bytes) -> Damage:
    return lambda git_dir: (git_dir / name).write_bytes(raw)


def cut(path: Path, part: float = 0.5) -> None:
    raw = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(raw[: int(len(raw) * part)])


def overwrite(path: Path, raw: bytes = b"\0" * 64, part: float = 0.5) -> None:
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.seek(int(path.stat().st_size * part))
        stream.write(raw)


def older(git_dir: Path) -> None:
    """The head ref at the first event, as a restored backup has it."""
    first = git(git_dir, "rev-list", "--reverse", HEAD).split()[0]
    (git_dir / HEAD).write_text(first + "\n")


def elsewhere(git_dir: Path) -> None:
    (git_dir / HEAD).write_bytes((git_dir / "refs/gatos/messages/jobs/head").read_bytes())


def pack_refs(then: Damage) -> Damage:
    def damage(git_dir: Path) -> None:
        git(git_dir, "pack-refs", "--all", "--prune")
        then(git_dir)

    return damage


def packed_older(git_dir: Path) -> None:
    text = (git_dir / "packed-refs").read_text()
    first = git(git_dir, "rev-list", "--reverse", HEAD).split()[0]
    kept = [f"{first} {HEAD}" if line.endswith(HEAD) else line for line in text.splitlines()]
    (git_dir / "packed-refs").write_text("\n".join(kept) + "\n")


def packs(suffix: str, act: Callable[[Path], object]) -> Damage:
    """Damage the pack or the index that holds the first events: the largest."""

    def damage(git_dir: Path) -> None:
        found = max((git_dir / "objects/pack").glob("pack-*.pack"), key=lambda path: path.stat().st_size)
        act(found.with_suffix(suffix))

    return damage


def loose(act: Callable[[Path], object], what: str = "{}") -> Damage:
    """Unpack everything, then damage the loose object that `what` names below the head."""

    def damage(git_dir: Path) -> None:
        folder = git_dir / "objects/pack"
        packed = sorted(folder.glob("pack-*.pack"))
        names = {pack: pack.read_bytes() for pack in packed}
        shutil.rmtree(folder)
        folder.mkdir()
        for raw in names.values():
            subprocess.run(["git", f"--git-dir={git_dir}", "unpack-objects", "-q"], input=raw, check=True)
        oid = git(git_dir, "rev-parse", what.format(f"{HEAD}~2"))
        path = git_dir / "objects" / oid[:2] / oid[2:]
        path.chmod(0o644)
        act(path)

    return damage


def both(*acts: Damage) -> Damage:
    def damage(git_dir: Path) -> None:
        for act in acts:
            act(git_dir)

    return damage


def remove(name: str) -> Damage:
    def damage(git_dir: Path) -> None:
        path = git_dir / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def indexes(act: Callable[[Path], object]) -> Damage:
    """Damage every file of every index."""

    def damage(git_dir: Path) -> None:
        found = [path for path in (git_dir / INDEX).glob("*/*") if path.name != "lock"]
        assert found
        for path in found:
            act(path)

    return damage


def pipe(git_dir: Path) -> None:
    (git_dir / HEAD).unlink()
    os.mkfifo(git_dir / HEAD)


def alternates(git_dir: Path) -> None:
    (git_dir / "objects/info").mkdir(exist_ok=True)
    (git_dir / "objects/info/alternates").write_bytes(b"\xff\xfe\n")


SEEN = f"ropewalk/seen/{HEAD}"
INDEX = "ropewalk/index"
DAMAGES: dict[str, Damage] = {
    "head_cut": lambda git_dir: cut(git_dir / HEAD),
    "head_empty": write(HEAD, b""),
    "head_garbage": write(HEAD, b"\xff\xfe garbage\n"),
    "head_symbolic": write(HEAD, b"ref: refs/gatos/messages/jobs/head\n"),
    "head_missing_commit": write(HEAD, NOWHERE),
    "head_older_commit": older,
    "head_of_another_log": elsewhere,
    "head_gone": remove(HEAD),
    "head_pipe": pipe,
    "packed_refs_garbage": pack_refs(write("packed-refs", b"garbage\n")),
    "packed_refs_cut": pack_refs(lambda git_dir: cut(git_dir / "packed-refs", 0.6)),
    "packed_refs_gone": pack_refs(remove("packed-refs")),
    "packed_refs_older": pack_refs(packed_older),
    "pack_cut": packs(".pack", cut),
    "pack_zeroed": packs(".pack", overwrite),
    "pack_empty": packs(".pack", lambda path: cut(path, 0)),
    "pack_gone": packs(".pack", Path.unlink),
    "pack_index_cut": packs(".idx", cut),
    "pack_index_zeroed": packs(".idx", overwrite),
    "pack_index_gone": packs(".idx", Path.unlink),
    "loose_commit_cut": loose(cut),
    "loose_commit_gone": loose(Path.unlink),
    "loose_commit_garbage": loose(lambda path: path.write_bytes(b"garbage")),
    "loose_tree_gone": loose(Path.unlink, "{}^{{tree}}"),
    "loose_tree_cut": loose(cut, "{}^{{tree}}"),
    "index_gone": remove(INDEX),
    "index_garbage": indexes(lambda path: path.write_bytes(b"\xff" * 9000)),
    "index_cut": indexes(cut),
    "index_empty": indexes(lambda path: cut(path, 0)),
    "seen_empty": write(SEEN, b""),
    "seen_garbage": write(SEEN, b"\xff" * 41),
    "seen_gone": remove(SEEN),
    "seen_garbage_head_older": both(older, write(SEEN, b"")),
    "index_gone_head_older": both(older, remove(INDEX)),
    "config_garbage": write("config", b"[[[\n"),
    "policy_garbage": write("ropewalk/policy.json", b"{"),
    "consumer_garbage": write(consumer_ref("g", "prod"), b"garbage"),
    "consumer_missing_commit": write(consumer_ref("g", "prod"), NOWHERE),
    "notes_torn": write(LOG_NOTES, b"torn"),
    "notes_missing_commit": write(LOG_NOTES, NOWHERE),
    "anchors_torn": write(anchors_ref(SHIPLOG, "prod"), b"torn"),
    "anchors_missing_commit": write(anchors_ref(SHIPLOG, "prod"), NOWHERE),
    "alternates_garbage": alternates,
}
HARMLESS = {  # nothing that was receipted is touched: the log goes on
    "index_gone",
    "index_garbage",
    "index_empty",
    "index_cut",
    "seen_gone",
    "alternates_garbage",
    "consumer_garbage",
    "consumer_missing_commit",
    "notes_torn",
    "notes_missing_commit",
}
REPORTED = {"consumer_garbage", "notes_torn", "notes_missing_commit"}  # and yet verify says so
UNKNOWN = (1, 2, -9, -11, -6)  # internal errors and crashes


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_then_append_then_verify(made, tmp_path, name):
    before, receipts = made
    move_in(before, tmp_path)
    git_dir = tmp_path / "log.git"
    DAMAGES[name](git_dir)
    ropewalk = living_in(tmp_path)

    def run(*arguments: str, stdin: bytes = b"") -> Answer:
        done = ropewalk(*arguments, "--json", stdin=stdin, env={"ROPEWALK_REPO": str(git_dir)})
        assert done.code not in UNKNOWN and "Traceback" not in done.err, (arguments, done)
        return done

    appended = run("shiplog", "append", "--ns", "prod", "--file", "-", stdin=b'{"type":"t","payload":{}}')
    if appended.code:
        assert appended.json["advice"], appended
    promised = receipts + ([appended.json] if appended.code == 0 else [])
    shown = run("shiplog", "read", "--ns", "prod")
    found = shown.json.get("events", []) if shown.code == 0 else []
    kept = [(event["ulid"], event["content_id"], event["commit"]) for event in found]
    whole = kept == [(each["ulid"], each["content_id"], each["commit"]) for each in promised]
    verified = run("verify")
    if not whole:  # something receipted is not to be had: every command that looks for it says so
        assert shown.code not in (0, 3), shown
        assert shown.json["advice"]
        assert verified.code != 0, verified.text
    if name in HARMLESS:
        assert appended.code == 0 and whole, (appended, shown)
        assert (verified.code == 5) == (name in REPORTED), verified.text


def test_damaged_gossip_store_is_refused(ropewalk_in, tmp_path):
    run = ropewalk_in
    run("init", "log.git")
    first = run("gossip", "append", "--topic", "t", "--payload", "-", "--json", stdin=b'{"n":1}')
    assert first.code == 0, first
    (store,) = (tmp_path / "log.git/ropewalk/gossip").rglob("data.mdb")
    for part in (0, 0.5):
        raw = store.read_bytes()
        overwrite(store, b"\xff" * min(8192, len(raw) // 2), part)
        done = run("gossip", "append", "--topic", "t", "--payload", "-", "--json", stdin=b'{"n":2}')
        verified = run("verify", "--json")
        assert done.code not in UNKNOWN and verified.code not in UNKNOWN, (done, verified)
        listed = run("gossip", "log", "--topic", "t", "--json")
        if listed.code == 0 and first.json["id"].encode() not in listed.out:
            assert verified.code == 5, verified.text
        store.write_bytes(raw)


@pytest.fixture
def ropewalk_in(tmp_path: Path) -> Callable[..., Answer]:
    run = living_in(tmp_path)
    return lambda *arguments, **more: run(
        *arguments, env={"ROPEWALK_REPO": str(tmp_path / "log.git")}, **more
    )
