"""Commands that need not start Python: each is forked from a process that has read the modules already.

Starting takes nine tenths of a short command. What is forked is a process like any other, with an environment, a
directory, streams and an exit code of its own; that commands also start is shown by those that are started: in
`tests/docs`, in `tests/interop`, and wherever a test begins one with `subprocess`. A shell kills
only the client of a forked command, which ends a moment later.
"""

from __future__ import annotations

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
from typing import Any, AnyStr, NoReturn

from tests.waiting import LIMIT_S

__all__ = ["Done", "Popen", "client", "end_as_python", "run"]

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
    pipe = subprocess.PIPE
    with Popen[bytes](arguments, stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd, env=environment) as process:
        try:
            out, err = process.communicate(stdin, LIMIT_S)
        except BaseException:
            process.kill()
            raise
        return Done(process.returncode, out, err)


class Popen(subprocess.Popen[AnyStr]):
    """`ropewalk` with these arguments; its process can be signalled and killed like one that was started."""

    def _execute_child(self, arguments: Sequence[str], *given: Any) -> None:
        cwd, environment, pipes = given[4], given[5], given[9:15]
        streams = [
            pipes[0] if pipes[0] >= 0 else 0,
            pipes[3] if pipes[3] >= 0 else 1,
            pipes[5] if pipes[5] >= 0 else 2,
        ]
        try:
            self._peer: socket.socket = socket.socket(socket.AF_UNIX)
            self._peer.connect(_server())
            asked = {
                "arguments": [os.fspath(each) for each in arguments],
                "cwd": os.fspath(cwd or Path.cwd()),
                "environment": dict(os.environ if environment is None else environment),
            }
            raw = json.dumps(asked).encode()
            socket.send_fds(self._peer, [len(raw).to_bytes(4, "big")], streams)
            self._peer.sendall(raw)
            self.pid = int.from_bytes(_exactly(self._peer, 4), "big")
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _wait(self, timeout: float | None) -> int:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            return self._take_code(timeout)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        lock = self._waitpid_lock  # type: ignore[attr-defined]
        if lock.acquire(blocking=False):
            try:
                self._take_code(0)
            except subprocess.TimeoutExpired:
                pass
            finally:
                lock.release()
        return self.returncode

    def _take_code(self, timeout: float | None) -> int:
        if self.returncode is None:
            self._peer.settimeout(timeout)
            try:
                self.returncode = int.from_bytes(_exactly(self._peer, 4), "big", signed=True)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._peer.close()
        return self.returncode


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


@cache
def client() -> Path:
    """Return a `ropewalk` for `subprocess` and shells that is forked and not started; it ends when its client does."""
    path = Path(_server())
    python = Path(sys.executable)
    made = path.with_name("ropewalk")
    made.write_text(
        CLIENT.format(python=python, started=str(python.with_name("ropewalk")), path=str(path)),
        encoding="utf-8",
    )
    made.chmod(0o755)
    return made


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

    _read_all()
    running: dict[int, tuple[int, socket.socket]] = {}  # process and client, by the descriptor of the process
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(16)
        gc.freeze()  # what is forked need not look through all this
        os.write(1, b"ready\n")
        while True:
            clients = [peer for _, peer in running.values()]
            ready = select.select(
                [server.fileno(), 0, *running, *map(socket.socket.fileno, clients)], [], []
            )[0]
            if 0 in ready:  # nobody holds the other end of our input
                break
            if server.fileno() in ready:
                peer, _ = server.accept()
                size, streams, _, _ = socket.recv_fds(peer, 4, 3)
                if len(streams) < 3:  # the client was killed
                    continue
                asked = json.loads(_exactly(peer, int.from_bytes(size, "big")))
                if (command := os.fork()) == 0:
                    os.setsid()
                    for each in (server, peer, *clients):
                        each.close()
                    _become(asked["arguments"], asked["cwd"], asked["environment"], streams)
                    end_as_python(main)
                for stream in streams:
                    os.close(stream)
                running[os.pidfd_open(command)] = command, peer
                with contextlib.suppress(OSError):
                    peer.sendall(command.to_bytes(4, "big"))
            for ending in [each for each in running if each in ready or running[each][1].fileno() in ready]:
                command, peer = running.pop(ending)
                if ending not in ready:  # the client was killed
                    _kill(command)
                os.close(ending)
                code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
                with peer, contextlib.suppress(OSError):
                    peer.sendall(code.to_bytes(4, "big", signed=True))
    for command, _ in running.values():
        _kill(command)


def _read_all() -> None:
    """Import all modules, and do what is done at first use: it would be the first use of each command."""
    for module in pkgutil.walk_packages(importlib.import_module("ropewalk").__path__, "ropewalk."):
        if not module.name.startswith(HEAVY):
            importlib.import_module(module.name)
    for name in ("pygit2", "nacl.bindings", "coincurve", "lmdb", "getpass", "importlib.resources"):
        importlib.import_module(name)
    from ropewalk.errors import InvalidEnvelope
    from ropewalk.kernel.schema import shipped as schema

    for name in schema.names():
        with contextlib.suppress(InvalidEnvelope):
            schema.validate(name, {})


def _kill(command: int) -> None:
    try:
        os.killpg(command, signal.SIGKILL)
    except ProcessLookupError:  # not yet the leader of its group
        os.kill(command, signal.SIGKILL)


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
