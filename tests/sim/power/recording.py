"""Run a workload under the recorder and read what it did to the disk."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

__all__ = ["ACKNOWLEDGED", "Call", "Recording", "record"]

HERE = Path(__file__).parent
HEAD = struct.Struct("<cQQIII")
ACKNOWLEDGED = ".acknowledged"  # a file that the workload writes its receipts to; no part of the disk
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


@cache
def recorder() -> Path:
    """Compile the recorder once per process."""
    library = Path(mkdtemp(prefix="ropewalk-recorder-")) / "recorder.so"
    command = ["cc", "-O1", "-w", "-shared", "-fPIC", "-o", str(library), str(HERE / "recorder.c"), "-ldl"]
    subprocess.run(command, check=True)
    return library


def record(root: Path, workload: str) -> Recording:
    """Run a workload on the files of `root` in a process of its own and return all it did."""
    root = root.resolve()
    folders = frozenset(str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()) | {"."}
    files = {
        str(path.relative_to(root)): (path.stat().st_ino, path.read_bytes())
        for path in root.rglob("*")
        if path.is_file()
    }
    log = root.with_name(f"{root.name}.calls")
    environment = {
        **os.environ,
        "LD_PRELOAD": str(recorder()),
        "RECORD_ROOT": str(root),
        "RECORD_LOG": str(log),
        "PYTHONHASHSEED": "0",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.power.workloads", workload, str(root)],
        env=environment,
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"workload {workload} ended with {done.returncode}: {done.stderr[-2000:]}")
    calls = tuple(_parse(log.read_bytes(), root))
    log.unlink()
    if not any(call.path == ACKNOWLEDGED for call in calls):
        raise RuntimeError(f"workload {workload} acknowledged nothing")
    return Recording(folders, files, calls)


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
