"""`ropewalk shiplog run`: run a command, stream its output through, and record what happened."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from ropewalk.cli.gitlog import opened, receipt_line
from ropewalk.cli.manners import Command, emit_line, fail, say, session
from ropewalk.errors import RopewalkError

if TYPE_CHECKING:
    from ropewalk.gitlog.envelope import Draft
    from ropewalk.gitlog.log import Receipt
    from ropewalk.node.repository import Repository

__all__ = ["run"]

CAPTURE_BYTES_MAX = 1 << 20  # kept of the output; the middle of more is left out, the ends tell most
READ_BYTES = 65_536
NOT_STARTED = 127  # what a shell answers for a command it cannot find


@click.command(
    "run",
    cls=Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Examples:\n  ropewalk shiplog run --ns deploy --service web --reason canary -- ./deploy.sh\n",
)
@click.option("--ns", required=True, help="The namespace.")
@click.option("--env", help="The environment; default: the namespace.")
@click.option("--service", help="What is deployed.")
@click.option("--artifact", help="Which build of it.")
@click.option("--reason", help="Why.")
@click.option("--ticket", help="The ticket that asked for it.")
@click.option("--region", help="Where: region.")
@click.option("--cluster", help="Where: cluster.")
@click.option("--namespace", help="Where: namespace of the cluster.")
@click.option("--pipeline", help="How: the pipeline.")
@click.option("--run-url", help="How: the page of this run. It is recorded, never fetched.")
@click.option("--allow-secret", is_flag=True, help="Keep output even if it looks like it holds a secret.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD…")
def run(ns: str, command: tuple[str, ...], allow_secret: bool, **fields: str | None) -> None:
    """Run CMD, pass its output on, and record who ran what, when, where, and how it ended.

    Ends with CMD's own exit code, like `time`. The output is attached to the event as a git note.
    """
    from ropewalk.gitlog.layout import check_namespace

    check_namespace(ns)
    argv = [_text(each) for each in command]
    given = {name: _text(value) for name, value in fields.items() if value}
    with opened() as log:  # before the command runs: what cannot be recorded is said at once
        log.allow_secrets = allow_secret
        started_ms = log.now_ms()
        _refuse_early(log, ns, _draft(log, argv, given, 0, started_ms, started_ms, attached=True))
        code, output = _execute(command)
        ended_ms = log.now_ms()
        withheld = _withheld(output) if not allow_secret else None
        attached = bool(output) and withheld is None
        draft = _draft(log, argv, given, code, started_ms, ended_ms, attached=attached)
        try:
            receipt = log.append(ns, draft.document, trailer=draft.trailer)
        except RopewalkError as error:
            say("the command ran, but it was NOT recorded:")
            raise click.exceptions.Exit(fail(error, as_json=session().json)) from error
        if attached:
            withheld = _attach(log, receipt, output, ended_ms)
        if session().json:
            answer = {
                "ulid": receipt.ulid,
                "content_id": receipt.content_id,
                "commit": receipt.commit,
                "ns": ns,
            }
            kept = attached and withheld is None
            emit_line({**answer, "replayed": False, "exit_code": code, "log_attached": kept})
        else:
            say(receipt_line(receipt))
        if withheld is not None:
            say("the command was recorded, but its output was NOT kept:")
            fail(withheld, as_json=False)
            raise click.exceptions.Exit(withheld.exit_code)
    raise click.exceptions.Exit(code)


def _text(argument: str) -> str:
    """An argument as text; bytes that are none are shown as such, for a log holds nothing but text."""
    return os.fsencode(argument).decode("utf-8", "replace")


def _refuse_early(log: Repository, ns: str, draft: Draft) -> None:
    """Refuse what the log would refuse once the command has run: a typing error must not cost a record."""
    from ropewalk.gitlog.commit import check_trailer, make_trailer
    from ropewalk.gitlog.envelope import seal
    from ropewalk.gitlog.layout import SHIPLOG
    from ropewalk.node.vetting import vet_draft

    seal(SHIPLOG, ns, draft.document, log.new_ulid())
    check_trailer(
        make_trailer(draft.trailer, topic=ns, now_ms=log.now_ms(), seq=0, parent=None, previous_anchor=None)
    )
    if not log.allow_secrets:
        vet_draft(draft)


def _withheld(output: bytes) -> RopewalkError | None:
    """Why the output may not be kept, None if it may."""
    from ropewalk.node.vetting import vet_output

    try:
        vet_output(output)
    except RopewalkError as error:
        return error
    return None


def _draft(
    log: Repository,
    argv: list[str],
    given: dict[str, str],
    code: int,
    started_ms: int,
    ended_ms: int,
    *,
    attached: bool,
) -> Draft:
    from ropewalk.gitlog.envelope import Draft

    status = "success" if code == 0 else "failed"
    ran = {
        "argv": argv,
        "cmd": shlex.join(argv),
        "exit_code": code,
        "duration_ms": ended_ms - started_ms,
        "host": socket.gethostname(),
        "log_attached": attached,
    }
    document = {"type": f"deployment.{status}", "payload": {"run": ran, **given}}
    return Draft(document, _trailer(log, given, status, started_ms, ended_ms))


def _attach(log: Repository, receipt: Receipt, output: bytes, now_ms: int) -> RopewalkError | None:
    """Hang the output on its event; returns why that failed, if it did: the event stands either way."""
    from ropewalk.gitlog.layout import LOG_NOTES
    from ropewalk.gitlog.notes import add_note

    try:
        add_note(log.store, LOG_NOTES, receipt.commit, output, log.author(now_ms))
    except RopewalkError as error:
        return error
    return None


def _trailer(
    log: Repository, given: dict[str, str], status: str, started_ms: int, ended_ms: int
) -> dict[str, Any]:
    from ropewalk.gitlog.commit import rfc3339

    who = log.author(started_ms)
    groups = {
        "what": ("service", "artifact"),
        "where": ("region", "cluster", "namespace"),
        "why": ("reason", "ticket"),
        "how": ("pipeline", "run_url"),
    }
    trailer: dict[str, Any] = {
        "status": status,
        "who": {"name": who.name, "email": who.mail},
        "when": {
            "start_ts": rfc3339(started_ms),
            "end_ts": rfc3339(ended_ms),
            "dur_s": max(0, ended_ms - started_ms) / 1000,
        },
    }
    for group, names in groups.items():
        held = {name: given[name] for name in names if name in given}
        if held:
            trailer[group] = held
    if "env" in given:
        trailer["env"] = given["env"]
    return trailer


def _execute(command: tuple[str, ...]) -> tuple[int, bytes]:
    """Run a command with its output passed on as it comes; returns its exit code and what was captured.

    It is over when the command itself ends: what it left running in the background may hold the output open for ever.
    """
    sink: IO[bytes] = sys.stderr.buffer if session().json else sys.stdout.buffer
    try:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
        return NOT_STARTED, f"{command[0]}: {error.strerror}\n".encode()
    assert child.stdout is not None
    kept = _Kept()
    # The terminal sends Ctrl-C to the child as well; it decides, we record.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for chunk in _output(child, child.stdout.fileno()):
            with contextlib.suppress(OSError):
                sink.write(chunk)
                sink.flush()
            kept.add(chunk)
        code = child.wait()
    finally:
        signal.signal(signal.SIGINT, previous)
        child.stdout.close()
    return (128 - code if code < 0 else code), kept.bytes()


def _output(child: subprocess.Popen[bytes], pipe: int) -> Iterator[bytes]:
    """What comes through a pipe until its end, or until the child's end: then all the child has written."""
    ended, tell = os.pipe()

    def wait() -> None:
        child.wait()
        os.close(tell)

    threading.Thread(target=wait, daemon=True).start()
    try:
        while ended not in select.select([pipe, ended], [], [])[0]:
            chunk = os.read(pipe, READ_BYTES)
            if not chunk:
                return
            yield chunk
        # The child wrote nothing after its end: what is its own is in the pipe now, and others may write on for ever.
        (left,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
        while left > 0 and (chunk := os.read(pipe, min(left, READ_BYTES))):
            left -= len(chunk)
            yield chunk
        if not select.select([pipe], [], [], 0)[0] or os.read(pipe, 1):
            say(
                "the command ended, but something it started goes on; what that writes from now on is not kept"
            )
    finally:
        os.close(ended)


class _Kept:
    """The beginning and the end of an output that may be endless."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def add(self, chunk: bytes) -> None:
        room = CAPTURE_BYTES_MAX // 2 - len(self._head)
        self._head += chunk[: max(0, room)]
        self._tail += chunk[max(0, room) :]
        excess = len(self._tail) - CAPTURE_BYTES_MAX // 2
        if excess > 0:
            del self._tail[:excess]
            self._left_out += excess

    def bytes(self) -> bytes:
        gap = f"\n[… {self._left_out} bytes left out …]\n".encode() if self._left_out else b""
        return bytes(self._head) + gap + bytes(self._tail)
