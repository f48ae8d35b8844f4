"""What is recorded, and what must hold after a cut. `python -m tests.sim.power.workloads NAME ROOT` does the work.

Each workload makes a small log (`prepare`), does its work and writes every receipt to the file of acknowledgements
(`work`), and tells what a disk after a cut does wrong (`check`): a writer opens the log, every acknowledged entry
must be there once and in order, the next append must work, and the whole must verify.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from ropewalk.disk.repository_paths import make_repository
from ropewalk.errors import Conflict, RopewalkError
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.store.rollup import roll_up
from ropewalk.gossip.core.verify import verify_log
from ropewalk.gossip.peer.topics import open_log as open_topic
from ropewalk.ledger.archive.pack import pack_channel
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.maintenance import rebuild_index, verify_stored
from ropewalk.ledger.envelope.model import envelope_id
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.transparency.witness import parse_request
from ropewalk.ledger.transparency.witness_folder import make_witness, open_witness
from ropewalk.repository_check import verify_gitlogs
from tests.fault.test_gossip_kills import KEY, TOPIC
from tests.sim.power.recording import ACKNOWLEDGED
from tests.unit.ledger.archiving import archived, failures, filled
from tests.unit.ledger.heading import LOG, NOW_S, SECRET, WITNESS, SmallLog
from tests.unit.ledger.making import NODE, observed, opened
from tests.unit.ledger.rotating import NEXT, opened_with, rotation

__all__ = ["WORKLOADS", "Workload"]

CHANNEL = "ea.core"
Acknowledge = Callable[[str], None]


class Workload(ABC):
    """Something that is done to a log and may be cut off."""

    engine: ClassVar[str]

    @abstractmethod
    def prepare(self, root: Path) -> None: ...

    @abstractmethod
    def work(self, root: Path, acknowledge: Acknowledge) -> None: ...

    @abstractmethod
    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        """What is wrong; an exception is wrong too."""


class LedgerAppends(Workload):
    """One block, a batch, and a second writer after the first."""

    engine = "ledger"
    keys = (NODE,)

    def prepare(self, root: Path) -> None:
        filled(root, 2)

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        for start in (10, 20):
            with opened(root) as ledger:
                acknowledge(ledger.log.submit(observed(start).raw).envelope_id.hex())
                for receipt in ledger.log.submit_many(observed(start + n).raw for n in range(1, 8)):
                    acknowledge(receipt.envelope_id.hex())

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        receipt = self._append(root)
        with open_channel(root, CHANNEL) as channel:
            found = [envelope_id(raw).hex() for block in channel.blocks() for raw in block.envelopes]
        yield from _held(acknowledged, found)
        if found[-1] != receipt:
            yield "the new envelope is not the last"
        report = verify_stored(root, CHANNEL, deep=True, trust=Trust((NODE.public,), ()))
        failed = [step for step in report.steps if step.status == "failed"]
        if [step.name for step in failed] == ["index"] and "ledger reindex" in failed[0].detail:
            rebuild_index(root, CHANNEL)  # indexes are not synced; verify names the remedy
            report = verify_stored(root, CHANNEL, deep=True, trust=Trust((NODE.public,), ()))
        if not report.ok:
            yield f"verify: {report.to_json()}"

    def _append(self, root: Path) -> str:
        with opened(root) as ledger:
            receipt: str = ledger.log.submit(observed(99).raw).envelope_id.hex()
            return receipt


class LedgerRotation(LedgerAppends):
    """The key of a channel is rotated between two blocks."""

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        with opened_with(root, NODE) as ledger:
            acknowledge(ledger.log.submit(observed(10).raw).envelope_id.hex())
            acknowledge(ledger.log.submit(rotation().raw).envelope_id.hex())
        with opened_with(root, NEXT) as ledger:
            acknowledge(ledger.log.submit(observed(11).raw).envelope_id.hex())

    def _append(self, root: Path) -> str:
        for key in (NODE, NEXT):
            try:
                with opened_with(root, key) as ledger:
                    receipt: str = ledger.log.submit(observed(99).raw).envelope_id.hex()
                    return receipt
            except Conflict:
                continue
        raise AssertionError("neither the old nor the new key may seal")


class LedgerArchive(LedgerAppends):
    """A channel is archived and packed, then grows."""

    def prepare(self, root: Path) -> None:
        filled(root, 6, segment_bytes=1)

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        archived(root, root / "cold", before=4)
        acknowledge("archive")
        pack_channel(root, CHANNEL, keep_blocks=1)
        with opened(root) as ledger:
            acknowledge(ledger.log.submit(observed(10).raw).envelope_id.hex())

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        yield from super().check(root, [each for each in acknowledged if each != "archive"])
        if "archive" in acknowledged and not any((root / "cold" / CHANNEL).iterdir()):
            yield "the archive is gone"
        archived(root, root / "cold", before=4)  # goes on where it was cut off
        if found := failures(root / "cold"):
            yield f"the archive fails: {found}"


class GitAppends(Workload):
    """Single events, a batch and a cursor."""

    engine = "gitlog"

    def prepare(self, root: Path) -> None:
        with open_repository(make_repository(root / "log.git")[0].git_dir) as log:
            log.append("demo", {"type": "t", "payload": {"n": -1}})

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        with open_repository(root / "log.git") as log:
            for number in range(3):
                acknowledge(log.append("demo", {"type": "t", "payload": {"n": number}}).ulid)
            drafts = [Draft({"type": "t", "payload": {"n": n}}) for n in range(10, 18)]
            for receipt in log.append_all("demo", drafts):
                if isinstance(receipt, RopewalkError):
                    raise receipt
                acknowledge(receipt.ulid)
            with log.consume("group", "demo") as events:
                list(events)

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        with open_repository(root / "log.git") as log:
            last = log.append("demo", {"type": "t", "payload": {"n": 99}}).ulid
            found = [event.ulid for event in log.events("demo")]
            yield from _held(acknowledged, found)
            if found[-1] != last:
                yield "the new event is not the last"
            with log.consume("group", "demo") as events:
                left = [event.ulid for event in events]
            if left != found[len(found) - len(left) :]:
                yield "the cursor passes events over"
            report = verify_gitlogs(log.store, deep=len(acknowledged) % 4 == 3)  # deep starts git each time
            if not report.ok:
                yield f"verify: {report.to_json()}"


class GitRollUp(GitAppends):
    """Small packs become one, while events are appended."""

    def prepare(self, root: Path) -> None:
        super().prepare(root)
        with open_repository(root / "log.git") as log:
            for number in range(5):
                log.append("demo", {"type": "t", "payload": {"n": number}})

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        with open_repository(root / "log.git") as log:
            acknowledge(log.append("demo", {"type": "t", "payload": {"n": 10}}).ulid)
            roll_up(log.store.pack_folder, log.store.place.home / "locks", log.store.disk, at_most=2)
            acknowledge(log.append("demo", {"type": "t", "payload": {"n": 11}}).ulid)


class GossipAppends(Workload):
    """Messages one by one and in a batch; the store is LMDB."""

    engine = "gossip"

    def prepare(self, root: Path) -> None:
        with open_topic(TOPIC, root / "db", signer=KEY) as log:
            log.append("first")

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        with open_topic(TOPIC, root / "db", signer=KEY) as log:
            for number in range(3):
                acknowledge(log.append(number).id)
            for stored in log.append_many(range(10, 40)):
                acknowledge(stored.id)

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        with open_topic(TOPIC, root / "db", signer=KEY) as log:
            last = log.append("last").id
            found = [signed.id for signed in log.iterate()]
            yield from _held(acknowledged, found)
            if found[-1] != last:
                yield "the new message is not the last"
            report = verify_log(log)
            if not report.ok:
                yield f"verify: {report.to_json()}"


class WitnessSigns(Workload):
    """A witness signs growing heads; after a cut it must sign no other history."""

    engine = "witness"

    def prepare(self, root: Path) -> None:
        make_witness(root / "watch", WITNESS.name, "watcher", SECRET).add(LOG.verifier)
        SmallLog(9).publish(root / "tiles")

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        for size in (4, 9):
            tiles = SmallLog(size).publish(root.with_name(f"{root.name}-tiles-{size}"))
            open_witness(root / "watch").cosign(parse_request(SmallLog(size).head()), SECRET, NOW_S, tiles)
            acknowledge(str(size))

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        signed = int(acknowledged[-1]) if acknowledged else 0
        if signed:
            forked = SmallLog(12, turn=signed - 1)
            try:
                with_tiles = forked.publish(root.with_name(f"{root.name}-fork"))
                open_witness(root / "watch").cosign(parse_request(forked.head()), SECRET, NOW_S, with_tiles)
                yield f"the witness signed {signed} leaves and then a fork of them"
            except RopewalkError:
                pass
        honest = SmallLog(12).publish(root.with_name(f"{root.name}-honest"))
        open_witness(root / "watch").cosign(parse_request(SmallLog(12).head()), SECRET, NOW_S, honest)


def _held(acknowledged: Sequence[str], found: Sequence[str]) -> Iterator[str]:
    """Say which receipts do not hold: each entry once, in the order of the receipts."""
    if len(set(found)) != len(found):
        yield "an entry is there twice"
    places = {each: place for place, each in enumerate(found)}
    lost = [each for each in acknowledged if each not in places]
    if lost:
        yield f"{len(lost)} acknowledged entries are lost, {lost[0]} first"
    order = [places[each] for each in acknowledged if each in places]
    if order != sorted(order):
        yield "acknowledged entries are in another order"


WORKLOADS: dict[str, Workload] = {
    "ledger": LedgerAppends(),
    "ledger_rotation": LedgerRotation(),
    "ledger_archive": LedgerArchive(),
    "gitlog": GitAppends(),
    "gitlog_rollup": GitRollUp(),
    "gossip": GossipAppends(),
    "witness": WitnessSigns(),
}


def main(name: str, root: Path) -> None:
    """Do the work of one workload; the recorder sees every receipt in its place among the calls."""
    descriptor = os.open(root / ACKNOWLEDGED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def acknowledge(receipt: str) -> None:
        os.write(descriptor, f"{receipt}\n".encode())

    WORKLOADS[name].work(root, acknowledge)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
