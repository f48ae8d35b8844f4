"""Run a workload under the recorder and read what it did to the disk."""

from __future__ import annotations

import atexit
import json
import os
import select
import struct
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

__all__ = ["Call", "Recording", "WorkloadFailed", "record"]

HERE = Path(__file__).parent
HEAD = struct.Struct("<cQQIII")
LIMIT_S = 300


@dataclass(frozen=True, slots=True)
class Call:
    """A call that changed the disk; its kind is the letter that the recorder writes."""

    kind: str
    inode: int
    offset: int
    path: str  # relative to the root
    second: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Recording:
    """What was on disk before, and every call since then."""

    folders: frozenset[str]
    files: dict[str, tuple[int, bytes]]  # inode and content
    calls: tuple[Call, ...]
    eligible: int = 0  # calls that might have failed, where a fault was asked for
    said: str = ""  # by the workload, to stderr


class WorkloadFailed(Exception):
    """A workload ended with an error that is not one of ropewalk's."""


@cache
def recorder() -> Path:
    """Compile the recorder once per process."""
    library = Path(mkdtemp(prefix="ropewalk-recorder-")) / "recorder.so"
    command = ["cc", "-O1", "-w", "-shared", "-fPIC", "-o", str(library), str(HERE / "recorder.c"), "-ldl"]
    subprocess.run(command, check=True)
    return library


class Recorder:
    """A process that has everything loaded and forks for each workload; started when it is first needed."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(self, name: str, root: Path, log: Path, fault: str | None) -> tuple[int, str]:
        """Run a workload under the recorder; return its exit code and what it wrote to stderr."""
        server = self._server = self._server or self._start()
        environment = {"RECORD_ROOT": str(root), "RECORD_LOG": str(log)}
        if fault is not None:
            environment["RECORD_FAULT"] = fault
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps({"name": name, "root": str(root), "environment": environment}) + "\n")
        server.stdin.flush()
        ready, _, _ = select.select([server.stdout], [], [], LIMIT_S)
        answer = server.stdout.readline() if ready else ""
        if not answer:
            self.close()
            raise RuntimeError(f"workload {name} gave no answer within {LIMIT_S} s")
        said = json.loads(answer)
        return said["code"], said["said"]

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.communicate()
            self._server = None

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.sim.power.workloads"],
            env={**os.environ, "LD_PRELOAD": str(recorder()), "PYTHONHASHSEED": "0"},
            cwd=HERE.parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


_recorder = Recorder()
atexit.register(_recorder.close)


def record(root: Path, workload: str, fault: str | None = None) -> Recording:
    """Run a workload on the files of `root` in a process of its own and return all it did."""
    root = root.resolve()
    folders = frozenset(str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()) | {"."}
    files = {
        str(path.relative_to(root)): (path.stat().st_ino, path.read_bytes())
        for path in root.rglob("*")
        if path.is_file()
    }
    log = root.with_name(f"{root.name}.calls")
    code, said = _recorder.run(workload, root, log, fault)
    if code:
        raise WorkloadFailed(f"workload {workload} ended with {code}: {said}")
    calls = tuple(_parse(log.read_bytes(), root))
    log.unlink()
    counted = log.with_name(f"{log.name}.count")
    count = int.from_bytes(counted.read_bytes(), sys.byteorder) if counted.exists() else 0
    counted.unlink(missing_ok=True)
    return Recording(folders, files, calls, count, said)


def _parse(raw: bytes, root: Path) -> Any:
    position = 0

    def relative(name: bytes) -> str:
        text = os.fsdecode(name).removesuffix(" (deleted)")
        return os.path.relpath(text, root) if text else ""

    while position < len(raw):
        kind, inode, offset, first, second, size = HEAD.unpack_from(raw, position)
        position += HEAD.size
        names = raw[position : position + first], raw[position + first : position + first + second]
        position += first + second
        yield Call(
            kind.decode(),
            inode,
            offset,
            relative(names[0]),
            relative(names[1]),
            raw[position : position + size],
        )
        position += size
