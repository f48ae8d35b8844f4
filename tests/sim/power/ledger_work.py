"""Workloads of the ledger: blocks, rotation, archives, restoring, a witness."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from ropewalk.errors import Conflict, NotFound, Replayed, RopewalkError
from ropewalk.ledger.archive.pack import pack_channel
from ropewalk.ledger.archive.restore import restore_channel
from ropewalk.ledger.archive.retain import retain_channel
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.maintenance import rebuild_index, verify_stored
from ropewalk.ledger.envelope.model import envelope_id
from ropewalk.ledger.ingest.ports import IngestLimits
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.remote.replica import pull_channel
from ropewalk.ledger.transparency.witness import parse_request
from ropewalk.ledger.transparency.witness_folder import make_witness, open_witness
from tests.sim.ledger_line import Line
from tests.sim.power.base import Acknowledge, Workload, held, in_log_order, together
from tests.unit.ledger.archiving import TRUST, archived, failures, filled
from tests.unit.ledger.heading import LOG, NOW_S, SECRET, WITNESS, SmallLog
from tests.unit.ledger.making import NODE, NOON_NS, observed, opened
from tests.unit.ledger.rotating import NEXT, opened_with, rotation

CHANNEL = "ea.core"


def submitted(ledger: Any, number: int) -> str:
    """Append one observation and return its id."""
    receipt: str = ledger.log.submit(observed(number).raw).envelope_id.hex()
    return receipt


class LedgerAppends(Workload):
    """One block, a batch, and a second writer after the first."""

    engine = "ledger"
    retried: ClassVar[tuple[int, ...]] = (0, *range(10, 18), *range(20, 28))  # appended by the work

    def prepare(self, root: Path) -> None:
        filled(root, 2)

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        for start in (10, 20):
            with opened(root) as ledger:
                acknowledge(submitted(ledger, start))
                for receipt in ledger.log.submit_many(observed(start + n).raw for n in range(1, 8)):
                    if isinstance(receipt, RopewalkError):
                        raise receipt
                    acknowledge(receipt.envelope_id.hex())

    def append(self, root: Path, number: int) -> str:
        with opened(root, wait_s=60) as ledger:
            return submitted(ledger, number)

    def retry(self, root: Path) -> None:
        with opened(root) as ledger:
            for number in self.retried:
                with contextlib.suppress(Replayed):
                    submitted(ledger, number)

    def read(self, root: Path) -> list[str]:
        with open_channel(root, CHANNEL) as channel:
            return [envelope_id(raw).hex() for block in channel.blocks() for raw in block.envelopes]

    def verify(self, root: Path, deep: bool) -> str:
        trust = Trust((NODE.public,), ())
        report = verify_stored(root, CHANNEL, deep=deep, trust=trust)
        failed = [step for step in report.steps if step.status == "failed"]
        if [step.name for step in failed] == ["index"] and "ledger reindex" in failed[0].detail:
            rebuild_index(root, CHANNEL)  # indexes are not synced; verify names the remedy
            report = verify_stored(root, CHANNEL, deep=deep, trust=trust)
        return "" if report.ok else str(report.to_json())


class LedgerThreads(LedgerAppends):
    """Four threads share blocks."""

    retried = tuple(start + n for start in range(100, 140, 10) for n in range(3))

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        with opened(root) as ledger:
            together(lambda number: submitted(ledger, number), acknowledge)

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        yield from super().check(root, in_log_order(acknowledged, self.read(root)))


class LedgerNew(LedgerAppends):
    """A channel is made in an empty home, and each block begins a segment."""

    retried = tuple(range(10, 16))

    def prepare(self, root: Path) -> None:
        pass

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        for number in (10, 11, 12):
            acknowledge(self.append(root, number))
        with opened(root / "home", segment_bytes=1, limits=IngestLimits(block_envelopes=1)) as ledger:
            for receipt in ledger.log.submit_many(observed(n).raw for n in (13, 14, 15)):
                if isinstance(receipt, RopewalkError):
                    raise receipt
                acknowledge(receipt.envelope_id.hex())

    def append(self, root: Path, number: int) -> str:
        with opened(root / "home", wait_s=60, segment_bytes=1) as ledger:
            return submitted(ledger, number)

    def read(self, root: Path) -> list[str]:
        return super().read(root / "home")

    def verify(self, root: Path, deep: bool) -> str:
        return super().verify(root / "home", deep)


class LedgerRotation(LedgerAppends):
    """The key of a channel is rotated between two blocks."""

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        with opened_with(root, NODE) as ledger:
            acknowledge(submitted(ledger, 10))
            acknowledge(ledger.log.submit(rotation().raw).envelope_id.hex())
        with opened_with(root, NEXT) as ledger:
            acknowledge(submitted(ledger, 11))

    def append(self, root: Path, number: int) -> str:
        try:
            with opened_with(root, NODE) as ledger:
                return submitted(ledger, number)
        except Replayed:
            raise
        except Conflict:
            with opened_with(root, NEXT) as ledger:
                return submitted(ledger, number)

    def retry(self, root: Path) -> None:
        with contextlib.suppress(Replayed):
            self.append(root, 10)


class LedgerArchive(LedgerAppends):
    """A channel is archived and packed, then grows."""

    retried = (0, 5, 10)

    def prepare(self, root: Path) -> None:
        filled(root, 6, segment_bytes=1)

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        archived(root, root / "cold", before=4)
        acknowledge("archive")
        pack_channel(root, CHANNEL, keep_blocks=1)
        with opened(root) as ledger:
            acknowledge(submitted(ledger, 10))

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        yield from super().check(root, [each for each in acknowledged if each != "archive"])
        if "archive" in acknowledged and not list((root / "cold" / CHANNEL).glob("[0-9]*")):
            yield "the archive is gone"
        archived(root, root / "cold", before=4)  # goes on where it was cut off
        if found := failures(root / "cold"):
            yield f"the archive fails: {found}"


class LedgerRestore(LedgerAppends):
    """A channel is rebuilt from its archives; a restore that was cut off begins again."""

    retried = (0, 3, 10)

    def prepare(self, root: Path) -> None:
        filled(root / "lost", 4)
        archived(root / "lost", root / "cold")
        shutil.rmtree(root / "lost")

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        restore_channel(root / "cold", CHANNEL, root, trust=TRUST)
        for number in range(4):
            acknowledge(envelope_id(observed(number).raw).hex())
        acknowledge(self.append(root, 10))

    def append(self, root: Path, number: int) -> str:
        if not (root / "ledger" / CHANNEL / "channel.json").exists():
            restore_channel(root / "cold", CHANNEL, root, trust=TRUST)
        return super().append(root, number)


class LedgerPull(LedgerAppends):
    """A replica pulls in two parts, the second from a channel that has grown; after a cut it pulls the rest."""

    retried = ()  # clients send to the origin

    def prepare(self, root: Path) -> None:
        filled(root / "origin", 3)
        self._pull(root)

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        for start in (10, 20):
            acknowledge(self.append(root, start))

    def append(self, root: Path, number: int) -> str:
        with opened(root / "origin", wait_s=60) as ledger:
            receipt = submitted(ledger, number)
        self._pull(root)
        return receipt

    def read(self, root: Path) -> list[str]:
        return super().read(root / "replica")

    def verify(self, root: Path, deep: bool) -> str:
        return super().verify(root / "replica", deep)

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        yield from held(acknowledged, self.read(root))  # before it pulls what it lost
        yield from super().check(root, acknowledged)

    def _pull(self, root: Path) -> None:
        pull_channel(Line(root / "origin", CHANNEL), root / "replica", CHANNEL)  # type: ignore[arg-type]


class LedgerRetain(LedgerArchive):
    """Old segments are archived and dropped, then the channel grows."""

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        retain_channel(
            root, CHANNEL, lambda: [NODE], str(root / "cold"), keep_blocks=2, now_ns=lambda: NOON_NS
        )
        acknowledge("archive")
        with opened(root) as ledger:
            acknowledge(submitted(ledger, 10))


class WitnessSigns(Workload):
    """A witness signs growing heads; after a cut it must sign no other history."""

    engine = "witness"
    rot = frozenset(("bit", "zeros", "misdirected", "cut"))  # whose state is gone knows nothing

    def prepare(self, root: Path) -> None:
        make_witness(root / "watch", WITNESS.name, "watcher", SECRET).add(LOG.verifier)
        SmallLog(9).publish(root / "tiles")

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        for size in (4, 9):
            self._sign(root, SmallLog(size), f"tiles-{size}")
            acknowledge(str(size))

    def again(self, root: Path, acknowledge: Acknowledge) -> None:
        acknowledge(self.append(root, 11))

    def append(self, root: Path, number: int) -> str:
        size = min(number, 12)
        self._sign(root, SmallLog(size), "honest")
        return str(size)

    def read(self, root: Path) -> list[str]:
        return []

    def verify(self, root: Path, deep: bool) -> str:
        return ""

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        yield from self._forks(root, acknowledged)
        self.append(root, 12)

    def check_damaged(self, root: Path, acknowledged: list[str], before: list[str]) -> Iterator[str]:
        yield from self._forks(root, acknowledged)
        with contextlib.suppress(RopewalkError):
            self.append(root, 12)

    def _forks(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        signed = int(acknowledged[-1]) if acknowledged else 0
        if signed:
            with contextlib.suppress(RopewalkError):
                self._sign(root, SmallLog(12, turn=signed - 1), "fork")
                yield f"the witness signed {signed} leaves and then a fork of them"

    def _sign(self, root: Path, log: SmallLog, name: str) -> None:
        tiles = log.publish(root.with_name(f"{root.name}-{name}"))
        open_witness(root / "watch").cosign(parse_request(log.head()), SECRET, NOW_S, tiles)


class WitnessNew(WitnessSigns):
    """A witness is made, learns of a log, and signs its first heads."""

    def prepare(self, root: Path) -> None:
        pass

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        make_witness(root / "watch", WITNESS.name, "watcher", SECRET).add(LOG.verifier)
        super().work(root, acknowledge)

    def append(self, root: Path, number: int) -> str:
        try:
            watch = open_witness(root / "watch")
        except NotFound:  # half made at most; the advice is another folder
            shutil.rmtree(root / "watch", ignore_errors=True)
            watch = make_witness(root / "watch", WITNESS.name, "watcher", SECRET)
        if not watch.logs():
            watch.add(LOG.verifier)
        return super().append(root, number)
