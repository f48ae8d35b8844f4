"""A sender that is killed at every line of putting an envelope in; run as a program by the tests of mailboxes.

Prints for each line how it ended, whether the envelope was there after the kill, and whether all that was there was
whole.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from ropewalk.errors import DigestMismatch
from ropewalk.ledger.mailbox.ring import RingReader, RingWriter
from ropewalk.ledger.mailbox.shared_memory import make_ring, map_ring

SLOTS, SLOT_BYTES = 2, 256


def put_until(path: Path, line: int) -> int:
    """In a process of its own: put one in, and be killed before this line of it; how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen = 0

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal seen
        if frame.f_code is not RingWriter.put.__code__ and event == "call":
            return None
        seen += event == "line"
        if seen == line and event == "line":
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    writer = RingWriter(map_ring(path).ring)
    sys.settrace(trace)
    writer.put(b"new" * 50)
    os._exit(0)


def main() -> None:
    path = Path(sys.argv[1])
    ring = make_ring(path, SLOTS, SLOT_BYTES, bytes(16)).ring
    writer, reader = RingWriter(ring), RingReader(ring)
    for _ in range(SLOTS + 1):  # so that slots hold something old
        writer.put(b"old")
        reader.take(1)
        reader.acknowledge(1)
    writer.put(b"before")
    start, line, found, code = writer.tail, 1, list[Any](), -signal.SIGKILL
    while code == -signal.SIGKILL and line < 100:
        code = put_until(path, line)
        there = ring.published(start) - start
        try:
            whole = [ring.look(place)[1] for place in range(reader.head, start + there)]
            ok = whole == [b"before", b"new" * 50][: 1 + there]
        except DigestMismatch:
            ok = False
        found.append([code, there, ok])
        if there:  # empty it again
            reader.take(1 + there)
            reader.acknowledge(1 + there)
            writer = RingWriter(ring)
            writer.put(b"before")
            start = writer.tail
        line += 1
    print(json.dumps(found))


if __name__ == "__main__":
    main()
