"""Maintain stored channels: verify everything, compare the index with the log, or rebuild it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ropewalk.errors import Damaged, RopewalkError
from ropewalk.kernel.report import Report, Step
from ropewalk.ledger.block.block import Block, parse_record
from ropewalk.ledger.channel.channel import Channel, verify_blocks
from ropewalk.ledger.channel.index.check import check_index
from ropewalk.ledger.channel.index.index import LedgerIndex
from ropewalk.ledger.channel.key_heights import read_heights, write_heights
from ropewalk.ledger.channel.losses import blocks_text, open_loss, read_known, read_repairs
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.channel.segments.writer import hold_lock
from ropewalk.ledger.channel.settings import FOLDER
from ropewalk.ledger.channel.summaries import SummaryCheck
from ropewalk.ledger.evidence.recheck import EVIDENCE, EvidenceTally
from ropewalk.ledger.evidence.settings import evidence_settings_step, stored_trust
from ropewalk.ledger.keys.statements import maybe_key_statement
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.versions.lifecycle import lifecycle_step
from ropewalk.ledger.versions.statements import CHANGED_TYPE, VersionAct, read_acts

RECEIPTS = "receipts"
OWN_KEY = "the key this repository names"
HINT = "; no trust file names it"
Lines = Iterator[tuple[int, list[bytes]]]


def verify_stored(
    home: Path,
    channel: str,
    *,
    trust: Trust | None = None,
    deep: bool = False,
    watch: Callable[[Lines], Lines] | None = None,
) -> Report:
    """Verify a stored channel: its blocks, and with `deep` envelopes, evidence and the index.

    Without a trust file the channel's own settings define the trust, and the report says so.
    """
    believed = trust if trust is not None else stored_trust(home, channel)
    tally, summaries = EvidenceTally(believed), SummaryCheck(channel)
    acts: dict[str, tuple[int, VersionAct]] = {}
    about_keys: list[int] = []

    def look(lines: Lines) -> Lines:
        for height, found in watch(lines) if watch is not None else lines:
            if deep:
                tally.look_into(height, found)
                summaries.take(found)
            acts.update(version_acts(height, found))
            if _speaks_of_keys(found):
                about_keys.append(height)
            yield height, found

    report = verify_blocks(home, channel, trust=believed, deep=deep, watch=look)
    steps = [_with_signer(step, trust) for step in report.steps]
    steps += _key_list(home / FOLDER / channel, about_keys)
    steps.append(receipt_step(Segments(home / FOLDER / channel)))
    if deep:
        steps += [tally.step(), index_step(Segments(home / FOLDER / channel))]
        steps += [each for each in (summaries.step(),) if each is not None]
    else:
        steps.append(Step.optional(EVIDENCE, "evidence inside envelopes needs --deep"))
    if report.first_failure is None:
        settings = lifecycle_step(home, channel, acts), evidence_settings_step(home, channel)
        steps += [each for each in settings if each is not None]
    return Report(tuple(steps), report.counts)


def version_acts(height: int, lines: list[bytes]) -> dict[str, tuple[int, VersionAct]]:
    """Return the version changes in a block; ignore a block that cannot be read, which verification reports."""
    if not any(CHANGED_TYPE.encode() in raw for raw in lines[1:]):
        return {}
    try:
        return {act.protocol_version: (height, act) for act in read_acts(Block.from_lines(lines))}
    except RopewalkError:
        return {}


def _key_list(folder: Path, heights: Sequence[int]) -> Iterator[Step]:
    """Check that keys.json lists every block that changes keys: writers and readers of single blocks rely on it."""
    try:
        missing = sorted(set(heights).difference(read_heights(folder)))
    except RopewalkError as error:
        yield Step("key_list", "failed", error.detail)
        return
    if missing:
        detail = (
            f"keys.json does not list block {missing[0]}, which changes keys; run `ropewalk ledger reindex`"
        )
        yield Step("key_list", "failed", detail, {"height": missing[0]})
    elif heights:
        yield Step("key_list", "passed", f"keys.json lists all {len(heights)} blocks that change keys")


def receipt_step(segments: Segments) -> Step:
    """Check that the log still has every receipted block; return a report step. Nothing is written."""
    try:
        loss = open_loss(read_repairs(segments.folder))
        mark = segments.check_receipted() if loss is None else None
        known = read_known(segments.folder) if loss is None else None
        if known is not None:
            found = parse_record(segments.find(known.blocks - 1).lines[0])
            if found.hash.hex() != known.block_hash:
                raise Damaged(
                    f"block {known.blocks - 1} is not the one that {known.source} was made of",
                    height=known.blocks - 1,
                )
    except RopewalkError as error:
        return Step(RECEIPTS, "failed", error.detail, {"height": int(error.fields.get("height", 0))})
    if loss is not None:
        which = blocks_text(loss.blocks, loss.receipted)
        detail = f"a repair on {loss.at} gave up {which}, for which receipts had been given"
        return Step(RECEIPTS, "failed", detail, {"height": loss.blocks})
    if mark is None:
        return Step(RECEIPTS, "failed", "the file that says how many blocks were receipted is missing")
    return Step(RECEIPTS, "passed", f"{mark.blocks} receipted blocks, all in the log")


def index_step(segments: Segments) -> Step:
    """Compare the index with the log; return a report step. Nothing is written."""
    try:
        found = check_index(segments)
    except RopewalkError as error:
        return Step("index", "not_checked", f"the log cannot be read to its end: {error.detail}")
    if found.ok and not found.blocks:
        return Step.optional("index", "there is none; it is built from the log when it is needed")
    return Step("index", "passed" if found.ok else "failed", found.explain())


def rebuild_index(home: Path, channel: str) -> int:
    """Delete and rebuild the index; return the number of blocks. No process may be writing.

    Raise `Damaged` and keep the index if the log cannot be read to its end: it shows what is missing.
    """
    reading = Channel(home, channel)
    with hold_lock(reading.folder):  # so that no writer has half an index in memory
        for _ in reading.segments.scan():
            pass
        return reindex(reading)


def reindex(reading: Channel) -> int:
    """Rebuild the index of a channel and the list of its key statements; the caller holds the lock."""
    index = LedgerIndex(reading.segments)
    try:
        index.rebuild()
        write_heights(reading.folder, _key_heights(reading))
        return index.state.height
    finally:
        index.close()


def _key_heights(reading: Channel) -> Iterator[int]:
    """Return the heights of key statements from the blocks themselves."""
    for height, lines in reading.lines():
        if _speaks_of_keys(lines):
            yield height


def _speaks_of_keys(lines: Sequence[bytes]) -> bool:
    return len(lines) == 2 and maybe_key_statement(lines[1])


def _with_signer(step: Step, trust: Trust | None) -> Step:
    """Add whose signature it is: a trusted key, or only the one this repository names."""
    if step.name != "block_signatures" or step.status != "passed":
        return step
    count, mark, who = step.detail.partition(" (")  # who signed which blocks, if there were several keys
    whose, hint = ("a trusted key", "") if trust is not None else (OWN_KEY, HINT)
    return replace(step, detail=f"{count}, sealed by {whose}{mark}{who}{hint}")
