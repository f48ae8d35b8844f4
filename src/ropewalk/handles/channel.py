"""A ledger channel for programs: signed envelopes in sealed blocks, and proofs that verify offline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.errors import RopewalkError
from ropewalk.handles.handle import Handle
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.report import Report
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.bundle.files import ExportedBundle, export_bundle
from ropewalk.ledger.channel.channel import Channel, OpenLog, open_channel, open_log
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.ledger.channel.settings import read_settings
from ropewalk.ledger.envelope.envelope import build, parse_stored
from ropewalk.ledger.envelope.fields import EventClass, format_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.ports import Head
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.proof.proof import Proof
from ropewalk.ledger.proof.trust import Trust

if TYPE_CHECKING:
    from ropewalk.ledger.replay.state_proof import StateProof


class LedgerChannel(Handle):
    """One channel: append envelopes, read blocks, prove, verify, export. Safe to share between threads.

    The first append opens the channel for writing and keeps its lock until `close`.

    >>> import ropewalk, tempfile
    >>> with tempfile.TemporaryDirectory() as folder, ropewalk.init(folder) as repo:
    ...     audit = repo.create_channel("audit")
    ...     receipt = audit.submit("build.finished", {"ok": True}, domain="ci")
    ...     audit.prove(receipt.envelope_id).envelope.payload, audit.verify(deep=True).verdict
    ({'ok': True}, 'passed')
    """

    kind = "channel"
    columns = ("envelope", "time", "type", "payload")

    def __init__(
        self, home: Path, name: str, key: Callable[[], SigningKey], *, lock_wait_s: float = 10.0
    ) -> None:
        self.settings = read_settings(home, name)
        super().__init__(name)
        self._home, self._find_key, self._lock_wait_s = home, key, lock_wait_s
        self._writer: OpenLog | None = None
        self._opening = threading.Lock()

    def append(self, envelope: Envelope | bytes) -> LedgerReceipt:
        """Append a signed envelope, as an object or as its JSON or CBOR bytes; it is durable when this returns."""
        return self._open().log.submit(envelope.raw if isinstance(envelope, Envelope) else envelope)

    def append_all(self, envelopes: Iterable[Envelope | bytes]) -> list[LedgerReceipt | RopewalkError]:
        """Append many envelopes in order, sharing blocks and fsyncs; return a receipt or an error for each."""
        raws = [each.raw if isinstance(each, Envelope) else each for each in envelopes]
        return self._open().log.submit_many(raws)

    def submit(
        self,
        event_type: str,
        payload: jcs.Json,
        *,
        domain: str,
        event_class: EventClass = "Observation",
        correlation_id: str | None = None,
        parent: Envelope | None = None,
        key: SigningKey | None = None,
        timestamp: str | None = None,
    ) -> LedgerReceipt:
        """Build an envelope from these fields, sign it with `key` (default: the channel's key) and append it."""
        self.check_open()
        envelope = build(
            key or self._find_key(),
            domain=domain,
            event_class=event_class,
            event_type=event_type,
            payload=payload,
            correlation_id=correlation_id,
            parent=parent,
            timestamp=timestamp or format_timestamp(time.time_ns()),
        )
        return self.append(envelope)

    def read(self, start: int = 0, limit: int = 100) -> list[Block]:
        """Return at most `limit` blocks from height `start`, parsed but not verified."""
        with self._reading() as channel:
            end = min(start + limit, channel.head().height) - 1
            return list(channel.blocks(start, end)) if limit > 0 and start <= end else []

    def tail(self, limit: int = 10) -> list[Envelope]:
        """Return the newest envelopes, oldest first."""
        found: list[Envelope] = []
        with self._reading() as channel:
            for height in range(channel.head().height - 1, -1, -1):
                if len(found) >= limit:
                    break
                (block,) = channel.blocks(height, height)
                found[:0] = map(parse_stored, block.envelopes)
        return found[max(0, len(found) - limit) :]

    def __iter__(self) -> Iterator[Envelope]:
        with self._reading() as channel:
            for block in channel.blocks():
                yield from map(parse_stored, block.envelopes)

    def __len__(self) -> int:
        return self.head().envelopes

    def head(self) -> Head:
        """Return the next height, the hash and time of the last block, and the number of envelopes."""
        with self._reading() as channel:
            return channel.head()

    def prove(self, envelope: Envelope | bytes | str) -> Proof:
        """Return the proof that an envelope is in this channel; name it by its id (bytes or hex) or give it."""
        name = envelope.id if isinstance(envelope, Envelope) else envelope
        with self._reading() as channel:
            return channel.prove(bytes.fromhex(name) if isinstance(name, str) else name)

    def prove_state(self, reducer: str, key: str, height: int | None = None) -> StateProof:
        """Return the proof of one member of the state at a snapshot; `key` is a JSON pointer such as `/prod/web`."""
        from ropewalk.ledger.replay.prove_state import prove_state
        from ropewalk.ledger.replay.reducers import find_reducer
        from ropewalk.ledger.replay.state_map import parse_pointer

        self.check_open()
        return prove_state(self._home, self.name, find_reducer(reducer), parse_pointer(key), height)

    def trust(self) -> Trust:
        """Return the keys and the policy a verifier must trust to accept this channel."""
        with self._reading() as channel:
            return channel.trust()

    def export(
        self,
        path: str | os.PathLike[str],
        start: int = 0,
        end: int | None = None,
        *,
        key: SigningKey | None = None,
    ) -> ExportedBundle:
        """Write the blocks from `start` to `end` (default: the last) as a bundle that verifies offline."""
        with self._reading() as channel:
            last = channel.head().height - 1 if end is None else end
            return export_bundle(channel, key or self._find_key(), start, last, Path(path))

    def newest(self) -> Iterable[Sequence[object]]:
        """Return the newest envelopes for a notebook."""
        return [(each.hex_id, each.timestamp, each.event_type, each.payload) for each in self.tail()]

    def verify(self, *, deep: bool = False, trust: Trust | None = None) -> Report:
        """Verify every block; with `deep` also every envelope, its evidence and the index."""
        self.check_open()
        return verify_stored(self._home, self.name, trust=trust, deep=deep)

    def close(self) -> None:
        """Flush the index and release the write lock."""
        super().close()
        with self._opening:
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _reading(self) -> Channel:
        self.check_open()
        return open_channel(self._home, self.name)

    def _open(self) -> OpenLog:
        with self._opening:
            self.check_open()
            if self._writer is None:
                self._writer = open_log(self._home, self.name, self._find_key(), wait_s=self._lock_wait_s)
            return self._writer
