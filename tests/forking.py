"""Commands that need not start Python: each is forked from a process that has read the modules already.

Starting takes nine tenths of a short command. What is forked is a process like any other, with an environment, a
directory, streams and an exit code of its own; that commands also start is shown by those that are started: in
`tests/docs`, in `tests/interop`, and wherever a test begins one with `subprocess`.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

from tests.waiting import LIMIT_S, Crew

__all__ = ["Done", "end_as_python", "install_client", "run"]

ROOT = Path(__file__).parents[1]
UNWRITTEN = 120  # Python's own, where the last of what was printed cannot be
HEAVY = ("ropewalk.pipeline", "ropewalk.cli.demo")  # few need them, and Spark is not for forking


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    out: bytes
    err: bytes


def run(arguments: Sequence[str], stdin: bytes, cwd: Path, environment: Mapping[str, str]) -> Done:
    """Run `ropewalk` with these arguments to its end."""
    asked = {"arguments": arguments, "cwd": str(cwd), "environment": dict(environment)}
    pipes = [os.pipe() for _ in range(3)]
    theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(_server())
        peer.sendmsg(
            [len(raw := json.dumps(asked).encode()).to_bytes(4, "big")],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", theirs))],
        )
        peer.sendall(raw)
        for each in theirs:
            os.close(each)
        command = int.from_bytes(_exactly(peer, 4), "big")
        crew = Crew(3)
        writing = crew.submit(_write, pipes[0][1], stdin)
        out, err = (crew.submit(_read, pipe[0]) for pipe in pipes[1:])
        try:
            peer.settimeout(LIMIT_S)
            code = int.from_bytes(_exactly(peer, 4), "big", signed=True)
            done = Done(code, out.result(LIMIT_S), err.result(LIMIT_S))
        except BaseException:
            os.kill(command, signal.SIGKILL)
            raise
        writing.result(LIMIT_S)
        crew.__exit__(None)
        return done


# `ropewalk` for a shell: hands arguments, directory, environment and streams to the server, passes signals on and ends
# as the command did. It imports little, so that it starts in a tenth of the time. Spark is not for forking.
CLIENT = """#!{python} -IS
import _socket, json, os, signal, sys
if sys.argv[1:2] in (["pipeline"], ["demo"]):
    os.execv({started!r}, [{started!r}, *sys.argv[1:]])
peer = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
peer.connect({path!r})
raw = json.dumps({{"arguments": sys.argv[1:], "cwd": os.getcwd(), "environment": dict(os.environ)}}).encode()
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
peer.sendmsg([len(raw).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
peer.sendall(raw)
command = int.from_bytes(peer.recv(4, _socket.MSG_WAITALL), "big")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, lambda number, _: os.kill(command, number))
code = int.from_bytes(peer.recv(4, _socket.MSG_WAITALL), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def install_client(folder: Path) -> None:
    """Put a `ropewalk` into the folder that is forked and not started; a command ends when its client does."""
    python = Path(sys.executable)
    client = folder / "ropewalk"
    client.write_text(
        CLIENT.format(python=python, started=str(python.with_name("ropewalk")), path=_server()),
        encoding="utf-8",
    )
    client.chmod(0o755)


def _write(descriptor: int, raw: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(descriptor, "wb") as stream:
        stream.write(raw)


def _read(descriptor: int) -> bytes:
    with open(descriptor, "rb") as stream:
        return stream.read()


def _exactly(peer: socket.socket, count: int) -> bytes:
    raw = b""
    while len(raw) < count:
        piece = peer.recv(count - len(raw))
        assert piece, "the server of commands has ended"
        raw += piece
    return raw


@cache
def _server() -> str:
    """Where commands are forked; it ends when we do, however that is."""
    folder = tempfile.TemporaryDirectory(prefix="ropewalk-forking-")
    path = f"{folder.name}/socket"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forking", path],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # all three are pipes, as those of the commands will be
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"

    def end() -> None:
        process.kill()
        process.communicate()
        folder.cleanup()

    atexit.register(end)
    return path


# The server.


def _serve(path: str) -> None:
    from ropewalk.cli import main  # before the module of the same name takes its place

    for module in pkgutil.walk_packages(importlib.import_module("ropewalk").__path__, "ropewalk."):
        if not module.name.startswith(HEAVY):
            importlib.import_module(module.name)
    import pygit2  # noqa: F401 - most commands that write ask it for git's settings

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(16)
        gc.freeze()  # what is forked need not look through all this
        os.write(1, b"ready\n")
        # Until nobody holds the other end of our input.
        while server.fileno() in select.select([server.fileno(), 0], [], [])[0]:
            peer, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _attend(peer, main)
            peer.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _attend(peer: socket.socket, main: Callable[[], None]) -> NoReturn:
    """Fork the command; say which process it is, and how it ended."""
    size, given, _, _ = socket.recv_fds(peer, 4, 3)
    asked = json.loads(_exactly(peer, int.from_bytes(size, "big")))
    command = os.fork()
    if command == 0:
        peer.close()
        os.setsid()
        _become(asked["arguments"], asked["cwd"], asked["environment"], given)
        end_as_python(main)
    for each in given:
        os.close(each)
    peer.sendall(command.to_bytes(4, "big"))
    ending = os.pidfd_open(command)
    if ending not in select.select([ending, peer.fileno()], [], [])[0]:  # the client was killed
        os.killpg(command, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    with contextlib.suppress(OSError):
        peer.sendall(code.to_bytes(4, "big", signed=True))
    os._exit(0)


def _become(arguments: list[str], cwd: str, environment: dict[str, str], streams: list[int]) -> None:
    import pygit2

    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if environment.get("PYTHONUNBUFFERED"):
        for name, number in (("stdout", 1), ("stderr", 2)):
            raw = io.FileIO(number, "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
    time.tzset()
    for level in (pygit2.enums.ConfigLevel.GLOBAL, pygit2.enums.ConfigLevel.XDG):
        pygit2.option(pygit2.enums.Option.SET_SEARCH_PATH, level, None)  # look again where home is
    sys.argv = [str(Path(sys.executable).with_name("ropewalk")), *arguments]


def end_as_python(main: Callable[[], None]) -> NoReturn:
    """Run it and end as Python does, but for taking every module apart: half the time of a short command."""
    code, interrupted = 0, False
    try:
        main()
    except SystemExit as said:
        if isinstance(said.code, int):
            code = said.code
        elif said.code is not None:
            print(said.code, file=sys.stderr)
            code = 1
    except BaseException as error:
        traceback.print_exc()
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = UNWRITTEN
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1])
