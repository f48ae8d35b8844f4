"""Care of stored channels: everything about one checked again, its index held against its log or built again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ropewalk.errors import RopewalkError, Unverified
from ropewalk.kernel.report import Report, Step
from ropewalk.ledger.evidencecheck import EVIDENCE, EvidenceTally
from ropewalk.ledger.keyacts import maybe_key_statement
from ropewalk.ledger.marks import derive
from ropewalk.ledger.replay import companion
from ropewalk.ledger.trust import Trust
from ropewalk.node.evidence import channel_trust
from ropewalk.node.ledger import FOLDER, Channel, channels, read_settings, verify_blocks
from ropewalk.stores.keyheights import write_heights
from ropewalk.stores.ledgerindex import LedgerIndex
from ropewalk.stores.ledgerindexcheck import check_index
from ropewalk.stores.segments import Segments
from ropewalk.stores.segmentwriter import hold_lock

__all__ = ["index_step", "rebuild_index", "verify_stored"]

OWN_KEY = "the key this repository names"
HINT = "; a trust file says whose"
Lines = Iterator[tuple[int, list[bytes]]]


def verify_stored(
    home: Path,
    channel: str,
    *,
    trust: Trust | None = None,
    deep: bool = False,
    watch: Callable[[Lines], Lines] | None = None,
) -> Report:
    """A stored channel by everything that is known: its blocks, and with `deep` envelopes, evidence and the index.

    Without a trust file the channel's own settings say whom to believe, and the report says so.
    """
    believed = trust if trust is not None else _own_trust(home, channel)
    if believed.policy_hash is not None and any(channel == companion(each) for each in channels(home)):
        believed = replace(believed, policy_hash=None)  # snapshots are made under no policy of their own
    tally = EvidenceTally(believed)

    def look(lines: Lines) -> Lines:
        for height, found in watch(lines) if watch is not None else lines:
            if deep:
                tally.look_into(height, found)
            yield height, found

    report = verify_blocks(home, channel, trust=believed, deep=deep, watch=look)
    steps = [_with_signer(step, trust) for step in report.steps]
    if deep:
        steps += [tally.step(), index_step(Segments(home / FOLDER / channel))]
    else:
        steps.append(Step(EVIDENCE, "not_checked", "evidence inside envelopes needs --deep"))
    return Report(tuple(steps), report.counts)


def _own_trust(home: Path, channel: str) -> Trust:
    """What the channel says of itself; if what it says about its keys cannot be read, its first key is enough."""
    try:
        return channel_trust(home, channel)
    except Unverified:  # and whoever reads the blocks says where
        return read_settings(home, channel).trust()


def index_step(segments: Segments) -> Step:
    """The index compared with the log, as a step of a report. Nothing is written."""
    try:
        found = check_index(segments, derive)
    except RopewalkError as error:
        return Step("index", "not_checked", f"the log cannot be read to its end: {error.detail}")
    if found.ok and not found.blocks:
        return Step("index", "not_checked", "there is none; it is built from the log when it is needed")
    return Step("index", "passed" if found.ok else "failed", found.explain())


def rebuild_index(home: Path, channel: str) -> int:
    """Throw the index away and build it again; returns how many blocks it knows. Nobody may be writing."""
    reading = Channel(home, channel)
    with hold_lock(reading.folder):  # so that no writer has half an index in memory
        index = LedgerIndex(reading.segments, derive)
        try:
            index.rebuild()
            write_heights(reading.folder, _key_heights(reading))
            return index.state.height
        finally:
            index.close()


def _key_heights(reading: Channel) -> Iterator[int]:
    """Where something is said about keys, from the blocks themselves."""
    for height, lines in reading.lines():
        if len(lines) == 2 and maybe_key_statement(lines[1]):
            yield height


def _with_signer(step: Step, trust: Trust | None) -> Step:
    """Whose seal it is that holds: one the verifier trusts, or only the one this repository names."""
    if step.name != "block_signatures" or step.status != "passed":
        return step
    count, mark, who = step.detail.partition(" (")  # who sealed which, where it was more than one key
    whose, hint = ("a trusted key", "") if trust is not None else (OWN_KEY, HINT)
    return replace(step, detail=f"{count}, sealed by {whose}{mark}{who}{hint}")
