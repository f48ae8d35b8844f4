"""Repair a damaged channel: show what is lost, restore it from a copy if there is one, or give it up.

    <channel>/repairing/…        the new log; moved to <channel>/segments by one rename
    <channel>/damaged/<time>/    the old log, unchanged

Blocks come from the damaged log itself as far as they are intact, the others from archives or a replica. All of
them are verified as one chain before anything is replaced. Receipted blocks that no copy has can be given up;
the channel is then closed: it can be read, proved and archived, but its lost heights are never sealed again.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import Disk, unavailable
from ropewalk.errors import Damaged, Forked, RopewalkError, Unverified
from ropewalk.ledger.archive.check import check_archives
from ropewalk.ledger.archive.cold import cold_store
from ropewalk.ledger.block.block import parse_record
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.channel.damage import ChannelDamage, DamagedFolder, own_known, own_mark
from ropewalk.ledger.channel.losses import KNOWN, REPAIRS, KnownHead, Repair, read_repairs, write_repairs
from ropewalk.ledger.channel.maintenance import reindex
from ropewalk.ledger.channel.receipted import MARK, ReceiptMark
from ropewalk.ledger.channel.segments.cold import read_cold
from ropewalk.ledger.channel.segments.format import ALIGN, digest_in
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.channel.segments.salvage import find_records
from ropewalk.ledger.channel.segments.writer import SegmentWriter, hold_lock
from ropewalk.ledger.channel.settings import FOLDER, ChannelSettings, read_settings
from ropewalk.ledger.channel.verify import Lines, check_lines
from ropewalk.ledger.proof.trust import Trust


@dataclass(frozen=True, slots=True)
class RepairResult:
    """Result of a repair. Unless `done`, nothing was changed: blocks would be lost, and that was not accepted."""

    damage: ChannelDamage
    done: bool
    blocks: int
    lost: tuple[dict[str, Any], ...] = ()
    kept: Path | None = None
    closed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as `ledger repair` prints it."""
        return {
            **self.damage.to_json(),
            "done": self.done,
            "blocks": self.blocks,
            "lost": list(self.lost),
            "kept": None if self.kept is None else str(self.kept),
            "closed": self.closed,
        }


def repair_channel(
    home: Path,
    channel: str,
    *,
    archive: str | Path | None = None,
    replica: Path | None = None,
    trust: Trust | None = None,
    accept_loss: bool = False,
    now_ns: Callable[[], int] = time.time_ns,
    disk: Disk | None = None,
) -> RepairResult:
    """Restore a damaged channel to one verified chain; the old files are kept.

    `archive` is the location of archives (without a source: that of the channel's cold blocks), `replica` the home of a
    repository with a copy of the channel. Receipted blocks that are in none of them are given up only with
    `accept_loss`, which closes the channel; blocks in a cold tier that cannot be reached are never given up. Raise
    `Unverified` if the blocks do not verify, `Forked` if a source has another block than the receipted one.
    """
    settings = read_settings(home, channel)
    folder, disk = home / FOLDER / channel, disk or Disk()
    with hold_lock(folder):
        repairing = _Repairing(folder, settings, trust or settings.trust(), disk)
        repairing.finish_swap()
        shutil.rmtree(folder / "cache", ignore_errors=True)  # copies of cold segments, which may have rotted
        damage = DamagedFolder(folder).describe()
        if not damage.problems:
            return RepairResult(damage, True, damage.whole)
        if archive is None and replica is None and damage.unreachable is None:
            archive = next(iter(cold_locations(Segments(folder))), None)
        try:
            blocks = repairing.assemble(
                damage.whole, _source(channel, archive, replica, trust or settings.trust())
            )
            if damage.unreachable is not None and blocks <= damage.unreachable.fields.get(
                "end_height", blocks
            ):
                raise damage.unreachable
            repairing.check(blocks)
            lost = tuple(each for each in damage.lost if each["height"] >= blocks)
            if (lost or not damage.sure or damage.receipted > blocks) and not accept_loss:
                return RepairResult(damage, False, blocks, lost)
            source = "archive" if archive is not None else "replica" if replica is not None else ""
            kept = repairing.put_in_place(damage, blocks, lost, source, now_ns())
        except OSError as error:
            raise unavailable(error, f"repairing {channel}") from error
        finally:
            repairing.clear()
        reindex(Channel(home, channel))
        return RepairResult(damage, True, blocks, lost, kept, closed=damage.receipted > blocks)


class _Repairing:
    """A new log: assembled next to the damaged one, checked, then installed."""

    def __init__(self, folder: Path, settings: ChannelSettings, trust: Trust, disk: Disk) -> None:
        self._folder, self._settings, self._trust, self._disk = folder, settings, trust, disk
        self._segments, self._begun = Segments(folder), folder / "repairing"

    def assemble(self, whole: int, source: Callable[[Callable[[int, list[bytes]], None]], None]) -> int:
        """Write the longest chain from our own intact records and from the source; return its length."""
        self.clear()
        starts = self._segments.starts()
        base = max((start for start in starts if start <= whole), default=0)
        own = find_records(self._segments, base)
        with SegmentWriter(self._begun, height=base, disk=self._disk) as writer:

            def add(lines: list[bytes]) -> None:
                writer.append(writer.height, lines, parse_record(lines[0]).hash)

            def take_own() -> None:
                while (place := own.pop(writer.height, None)) is not None:
                    lines = self._segments.read(place, writer.height).lines
                    if parse_record(lines[0]).header.channel != self._settings.channel:
                        return  # kept with the old files
                    add(lines)

            def take(height: int, lines: list[bytes]) -> None:
                take_own()
                if height == writer.height:
                    add(lines)

            take_own()
            source(take)
            take_own()
            writer.sync()
            writer.sync_mark()
            blocks = writer.height
        for start in starts:
            if start < base:
                for path in self._segments.files_folder.glob(f"{start:020d}.*"):
                    self._disk.link(path, self._begun / "segments" / path.name)
        return blocks

    def check(self, blocks: int) -> None:
        """Verify the assembled chain, and that it is the receipted history."""
        built = Segments(self._begun)
        report = check_lines(self._settings, _lines_of(built), trust=self._trust, deep=True)
        wrong = report.first_failure
        if wrong is not None:
            raise Unverified(
                f"{wrong.name}: {wrong.detail}",
                step=wrong.name,
                **wrong.fields,
                advice="Nothing was changed. Name a source that verifies, with --from-archive or --from-replica.",
            )
        with contextlib.suppress(Damaged):  # an unreadable mark names no block
            mark = own_mark(self._segments)
            if mark is not None and mark.place is not None and mark.blocks <= blocks:
                place = built.find(mark.blocks - 1).place
                if digest_in(built.peek(place.segment, place.offset, ALIGN)) != mark.digest:
                    raise self._fork(mark.blocks - 1)
        known: KnownHead | None = None
        with contextlib.suppress(Damaged):
            known = own_known(self._segments)
        if known is not None and known.blocks <= blocks:
            last = built.find(known.blocks - 1)
            if parse_record(last.lines[0]).hash.hex() != known.block_hash:
                raise self._fork(last.height)

    def _fork(self, height: int) -> Forked:
        return Forked(
            f"channel {self._settings.channel}: block {height} of the source is not the receipted one",
            height=height,
            advice="Nothing was changed. Compare both histories with the receipts to see which one was acknowledged.",
        )

    def put_in_place(
        self, damage: ChannelDamage, blocks: int, lost: tuple[dict[str, Any], ...], source: str, now_ns: int
    ) -> Path:
        """Keep the old log, and install the new one. What is given up is recorded first."""
        kept = self._folder / "damaged" / str(now_ns)
        self._disk.make_directories(kept)
        at = datetime.fromtimestamp(now_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        done: list[Repair] = []
        try:
            done = read_repairs(self._folder)
        except Damaged:
            self._disk.rename(self._folder / REPAIRS, kept / REPAIRS)
        receipted = max(damage.receipted, blocks)
        name = kept.relative_to(self._folder).as_posix()
        write_repairs(self._folder, [*done, Repair(at, blocks, receipted, name, lost, source)], self._disk)
        for old in (MARK, KNOWN):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(self._folder / old, kept / old)
        mark = (self._begun / MARK).read_bytes() if receipted == blocks else self._lost_mark(receipted)
        self._disk.replace(self._folder / MARK, mark, mode=0o600)
        if (self._folder / KNOWN).exists():
            self._disk.unlink(self._folder / KNOWN)  # the mark has the count, and repairs.json the blocks
        if damage.foreign and (self._folder / "index").exists():
            self._disk.rename(
                self._folder / "index", kept / "index"
            )  # it would claim blocks that are not ours
        if self._segments.files_folder.exists():
            self._disk.rename(self._segments.files_folder, kept / "segments")
        self.finish_swap()
        return kept

    def _lost_mark(self, receipted: int) -> bytes:
        """Return the mark of lost blocks, if it can be read and matches."""
        with contextlib.suppress(Damaged):
            mark = own_mark(self._segments)
            if mark is not None and mark.blocks == receipted:
                return mark.to_bytes()
        return ReceiptMark(receipted).to_bytes()

    def finish_swap(self) -> None:
        """Install the new log if the old one was already moved, now or by a killed process."""
        if not self._segments.files_folder.exists() and (self._begun / "segments").is_dir():
            self._disk.rename(self._begun / "segments", self._segments.files_folder)
            self._disk.fsync_directory(self._folder)

    def clear(self) -> None:
        """Remove what was not installed. Everything in that folder belongs to the repair."""
        shutil.rmtree(self._begun, ignore_errors=True)


def _source(
    channel: str, archive: str | Path | None, replica: Path | None, trust: Trust
) -> Callable[[Callable[[int, list[bytes]], None]], None]:
    """Return the source of missing blocks: a function that passes every block, in order, to a callback."""

    def read(take: Callable[[int, list[bytes]], None]) -> None:
        if archive is not None:
            with cold_store(str(archive)).folder() as folder:
                found = check_archives(folder / channel, trust=trust, channel=channel, take=take)
            wrong = found.report.first_failure
            if wrong is not None:
                raise Unverified(
                    f"archive {archive}: {wrong.name}: {wrong.detail}", step=wrong.name, **wrong.fields
                )
        if replica is not None:
            with Channel(replica, channel) as copy:
                for height, lines in copy.lines():
                    take(height, lines)

    return read


def cold_locations(segments: Segments) -> list[str]:
    """Return where the cold blocks of a channel are, as far as its files can be read."""
    found: dict[str, None] = {}
    for start in segments.starts():
        with contextlib.suppress(RopewalkError, FileNotFoundError):
            found[read_cold(segments.path(start)).location] = None
    return list(found)


def _lines_of(segments: Segments) -> Lines:
    for record in segments.scan():
        yield record.height, record.lines
