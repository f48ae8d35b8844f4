"""Send the anchors of an enclave's blocks, and remember how far they have been sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ropewalk.disk.durable import Disk
from ropewalk.errors import Damaged, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.mailbox.enclave_bridge import anchor_envelope
from ropewalk.ledger.remote.negotiate import Attest
from ropewalk.ledger.remote.sync_client import RemoteChannel
from ropewalk.ledger.versions.versions import newest_version


def anchor_blocks(
    home: Path,
    inbox: str,
    remote: RemoteChannel,
    public_channel: str,
    key: SigningKey,
    attest: Attest,
    *,
    now_ns: Callable[[], int] = time.time_ns,
) -> tuple[int, int | None]:
    """Anchor every block that has none; return how many, and the height of the last.

    After a crash one block may get two anchors, which say the same.
    """
    path = home / "enclave-anchors" / f"{inbox}~{public_channel}.json"
    begin = _next_height(path)
    height, count = begin - 1, 0
    version = newest_version([remote.agreement.protocol_version])
    with open_channel(home, inbox) as reading:
        records = [block.record for block in reading.blocks(begin)] if reading.head().height > begin else []
    for record in records:
        moment = format_timestamp(now_ns() // 1000 * 1000)
        outcome = remote.submit_many(
            [anchor_envelope(key, record, attest, timestamp=moment, protocol_version=version).raw]
        )[0]
        if isinstance(outcome, RopewalkError):
            raise outcome
        height, count = record.height, count + 1
        path.parent.mkdir(parents=True, exist_ok=True)
        Disk().replace(path, jcs.encode({"version": 1, "next": height + 1}))
    return count, height if height >= 0 else None


def _next_height(path: Path) -> int:
    if not path.exists():
        return 0
    value = jcs.parse(path.read_bytes())
    found = value.get("next") if isinstance(value, dict) else None
    if type(found) is not int or found < 0:
        raise Damaged(f"{path}: must hold the next height to anchor", reason="anchors")
    return found
