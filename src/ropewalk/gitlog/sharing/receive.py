"""Check a push on the server, before its refs move: the pre-receive hook of a shared repository."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import NamedTuple, NoReturn

from ropewalk.errors import BrokenLink, NotFound, RopewalkError
from ropewalk.gitlog.core.commit import parse_message
from ropewalk.gitlog.core.layout import CONSUMERS, MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.core.log import get_object
from ropewalk.gitlog.core.objects import Kind, Oid, parse_commit
from ropewalk.gitlog.sharing.remotes import SHARED
from ropewalk.gitlog.verify.event_check import check_next, list_chain

ZERO = "0" * 40
OBJECT_BYTES_MAX = 64 << 20


class PushedRef(NamedTuple):
    """One ref of a push: where it was and where it shall be."""

    old: str
    new: str
    ref: str


def check_push(updates: Iterable[PushedRef], signed_logs: Sequence[str] = ()) -> list[str]:
    """Return why a push must be refused, one reason per ref; empty if it may pass.

    Runs inside git's hook: objects are read through git, which sees those of the push. Commits of the logs that match
    `signed_logs` (`shiplog/prod`, `messages/*`) must pass `git verify-commit`.
    """
    reasons = []
    with _objects() as repo:
        for update in updates:
            try:
                reason = _check_update(repo, update, signed_logs)
            except RopewalkError as error:
                reason = error.detail
            if reason is not None:
                reasons.append(f"{update.ref}: {reason}")
    return reasons


def _check_update(repo: PushedObjects, update: PushedRef, signed_logs: Sequence[str]) -> str | None:
    if not update.ref.startswith(SHARED) or update.ref.startswith(CONSUMERS):
        return None  # branches are not ours to judge, and cursors may move anywhere
    if update.new == ZERO:
        return "a log must not be deleted"
    for layout in (SHIPLOG, MESSAGES):
        topic = layout.topic_of(update.ref)
        if topic is not None:
            return _check_log(repo, layout, topic, update, signed_logs)
    if update.old != ZERO and not _is_ancestor(update.old, update.new):
        return f"history must not be rewritten: {update.new[:7]} does not contain {update.old[:7]}"
    return None


def _check_log(
    repo: PushedObjects, layout: Layout, topic: str, update: PushedRef, signed_logs: Sequence[str]
) -> str | None:
    old = None if update.old == ZERO else update.old
    new = list(list_chain(repo, update.new, old))
    root = parse_commit(get_object(repo, new[-1], "commit")).parents if new else ()
    if old is not None and root != (old,):
        return f"history must not be rewritten: {update.new[:7]} does not contain {old[:7]}"
    below = old or ""
    last = parse_message(parse_commit(get_object(repo, Oid(below), "commit")).message) if below else None
    must_sign = any(fnmatchcase(f"{layout.name}/{topic}", pattern) for pattern in signed_logs)
    for oid in reversed(new):
        event = check_next(repo, layout, topic, oid, below, last)
        if event.fault is not None:
            return f"commit {oid[:7]} is not valid: {event.fault}"
        if must_sign and not _is_signed(oid):
            return f"commit {oid[:7]} must have a signature that `git verify-commit` accepts"
        below, last = oid, event.headers
    return None


def _is_signed(oid: str) -> bool:
    return subprocess.run(["git", "verify-commit", oid], capture_output=True, check=False).returncode == 0


def _is_ancestor(old: str, new: str) -> bool:
    command = ["git", "merge-base", "--is-ancestor", old, new]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class PushedObjects:
    """Objects of the repository and of the push, read through `git cat-file --batch`. Nothing is written."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def get(self, oid: str) -> tuple[Kind, bytes]:
        """Return the kind and the bytes of an object."""
        sink, source = self._process.stdin, self._process.stdout
        assert sink is not None and source is not None
        sink.write(oid.encode() + b"\n")
        sink.flush()
        words = source.readline().split()
        if len(words) != 3:
            raise NotFound(f"no object {oid}", id=oid)
        kind, size = words[1].decode(), int(words[2])
        if size > OBJECT_BYTES_MAX:
            self._process.kill()
            raise BrokenLink(
                f"object {oid} has {size} bytes; at most {OBJECT_BYTES_MAX} are allowed", entry=oid
            )
        raw = source.read(size + 1)[:-1]
        return kind, raw  # type: ignore[return-value]

    def head(self, _ref: str) -> str | None:
        """Return nothing: checks name the commits they mean."""
        return None

    def _write(self, *_arguments: object) -> NoReturn:
        raise AssertionError("a hook writes nothing")

    put = move_head = turn = _write


@contextmanager
def _objects() -> Iterator[PushedObjects]:
    command = ["git", "cat-file", "--batch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield PushedObjects(process)


def parse_updates(lines: Iterable[str]) -> list[PushedRef]:
    """Parse what git gives to the hook on stdin: `<old> <new> <ref>` per line.

    >>> parse_updates(["0 1 refs/gatos/shiplog/prod/head\\n"])
    [PushedRef(old='0', new='1', ref='refs/gatos/shiplog/prod/head')]
    """
    return [PushedRef(*line.split()) for line in lines if line.strip()]
