"""Verify the stored blocks of a channel in one pass from the first one, whatever they are read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ropewalk.disk.spill import Spill
from ropewalk.errors import Damaged
from ropewalk.kernel.report import Report
from ropewalk.ledger.channel.settings import ChannelSettings
from ropewalk.ledger.ingest.thread_pool import ThreadPool
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.proof.verify import Fault, SeenEnvelopes, check_channel, to_report
from ropewalk.ledger.rules.policy import Policy

Lines = Iterator[tuple[int, list[bytes]]]
"""Heights of blocks, and their stored lines."""
Watch = Callable[[Lines], Lines]


def check_stored(
    stored: Lines,
    *,
    trust: Trust,
    policy: Policy | None,
    key_history: KeyHistory,
    deep: bool,
    watch: Watch | None = None,
) -> Report:
    """Check blocks up to the first fault; reading them ends at `Damaged`, which is a fault too."""
    damage: list[Damaged] = []

    def lines() -> Lines:
        try:
            yield from stored
        except Damaged as error:
            damage.append(error)

    blocks = watch(lines()) if watch is not None else lines()
    if deep:
        with ThreadPool() as pool, Spill() as spill:
            seen = SeenEnvelopes(spill.table)
            span = check_channel(
                blocks, trust=trust, policy=policy, parallel_map=pool, seen=seen, key_history=key_history
            )
    else:
        span = check_channel(blocks, trust=trust, policy=policy, deep=False, key_history=key_history)
    if damage and span.fault is None:
        span = replace(span, fault=Fault(int(damage[0].fields.get("height", 0)), "storage", damage[0].detail))
    return to_report(span, deep=deep, trust=trust, key_history=key_history)


def check_lines(
    settings: ChannelSettings,
    stored: Lines,
    *,
    trust: Trust | None = None,
    deep: bool = False,
    watch: Watch | None = None,
) -> Report:
    """Check the blocks of a channel by its settings, from any source."""
    trust, policy = trust or settings.trust(), settings.policy
    key_history = KeyHistory(trust, policy=policy, lenient=True)
    key_history.channel = settings.channel
    return check_stored(stored, trust=trust, policy=policy, key_history=key_history, deep=deep, watch=watch)
