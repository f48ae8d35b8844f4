"""What a proxy could not give to a client, on the record (S2, federation §2)."""

from __future__ import annotations

from typing import Any

from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.core.objects import object_id
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel import jcs
from ropewalk.stream.core.frames import timestamp
from ropewalk.stream.proxy.proxy import MISS_TOPIC, MissedFrames

MISSES = "refs/gatos/audit/stream/replay_miss/"


def record_miss(log: GitRepository, miss: MissedFrames, stream: str, upstream: str) -> str:
    """Store a miss under a separate ref, and publish it as a message; return the name of the ref."""
    payload: dict[str, Any] = {
        **miss.payload(),
        "stream": stream,
        "upstream": upstream,
        "ts": timestamp(miss.at_ms),
    }
    ref = MISSES + log.new_ulid()
    raw = jcs.encode(payload)
    oid = object_id("blob", raw)
    with log.store.put([(oid, "blob", raw)]):
        log.store.move_head(ref, None, oid)
    log.append(MISS_TOPIC, {"type": MISS_TOPIC, "payload": {**payload, "ref": ref}}, layout=MESSAGES)
    return ref
