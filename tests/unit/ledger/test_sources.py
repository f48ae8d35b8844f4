"""A replica that is pulled from several servers at once, and what it does about their forks."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.making import ADA, NODE, observed
from tests.unit.ledger.test_remote import TRUST, served
from tests.waiting import aside

from ropewalk.errors import Forked, HistoryRewritten, SigInvalid, Unavailable
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import open_channel, open_log, verify_blocks
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.remote.replica import ChannelPullResult, pull_from
from ropewalk.ledger.remote.sync_client import connect_channel

pytestmark = pytest.mark.timeout(300)


def made(home: Path, count: int, first: int = 0, key: SigningKey = NODE) -> Path:
    """A channel with so many blocks; `first` tells one history from another."""
    if not (home / "ledger" / "audit").exists():
        create_channel(home, "audit", "node", key.public)
    with open_log(home, "audit", key, now_ns=lambda: 1_900_000_000 * 10**9) as opened:
        for number in range(count):
            opened.log.submit(observed(first + number).raw)
    return home


def pull(copy: Path, *homes: Path | None, **options: Any) -> ChannelPullResult:
    """Pull from a server for each home; None is one that cannot be reached."""

    async def main() -> ChannelPullResult:
        async with AsyncExitStack() as stack:
            urls = [(await stack.enter_async_context(served(home))).url if home else None for home in homes]

            def act() -> ChannelPullResult:
                with ExitStack() as open_ones:
                    sources: dict[str, Any] = {
                        f"source {at}": open_ones.enter_context(connect_channel(url, "audit"))
                        if url
                        else Unavailable("no route")
                        for at, url in enumerate(urls)
                    }
                    return pull_from(sources, copy, "audit", trust=TRUST, **options)

            return await aside(act)

    return asyncio.run(main())


def states(found: ChannelPullResult) -> list[tuple[str, int | None]]:
    return [(each.state, each.height) for each in found.sources]


def evidence(copy: Path) -> list[Path]:
    return sorted((copy / "ledger" / "audit").rglob("fork-*.json"))


def test_pull_takes_what_any_source_has(tmp_path):
    long, short, empty = made(tmp_path / "a", 4), made(tmp_path / "b", 2), made(tmp_path / "c", 0)
    found = pull(tmp_path / "copy", short, None, long, empty)
    assert (found.blocks, found.envelopes, found.made) == (4, 4, True)
    assert states(found) == [("behind", 1), ("unavailable", None), ("equal", 3), ("behind", None)]
    assert verify_blocks(tmp_path / "copy", "audit", trust=TRUST, deep=True).ok
    again = pull(tmp_path / "copy", long, short)
    assert again.blocks == 0 and states(again) == [("equal", 3), ("behind", 1)]
    assert again.to_json()["sources"][1]["state"] == "behind"
    with pytest.raises(HistoryRewritten, match="no source has block 3"):
        pull(tmp_path / "copy", short, empty)
    with pytest.raises(Unavailable, match="none of 2 sources"):
        pull(tmp_path / "copy", None, None)


def test_pull_refuses_a_shorter_fork_of_a_source(tmp_path):
    """Also a fork that ends below the replica is found, kept and raised; what was pulled stays."""
    good, fork = made(tmp_path / "a", 4), made(tmp_path / "b", 2, first=100)
    with pytest.raises(Forked):
        pull(tmp_path / "copy", fork, good)
    with open_channel(tmp_path / "copy", "audit") as channel:
        assert channel.head().height == 4
    assert len(evidence(tmp_path / "copy")) == 1


def test_pull_takes_the_longest_of_several(tmp_path):
    """With `longest` a longer history replaces the replica's; the shorter one is reported and kept."""
    short, long = made(tmp_path / "a", 2), made(tmp_path / "b", 4, first=100)
    assert pull(tmp_path / "copy", short).head.height == 2
    found = pull(tmp_path / "copy", short, long, forks="longest")
    assert found.head.height == 4 and found.replaced is not None
    assert (Path(found.replaced) / "channel.json").is_file()
    assert states(found) == [("forked", 1), ("equal", 3)]
    assert len(evidence(tmp_path / "copy")) == 1
    assert verify_blocks(tmp_path / "copy", "audit", trust=TRUST, deep=True).ok


@pytest.mark.parametrize("forks", ["refuse", "longest"])
def test_pull_raises_for_a_source_of_another_key(tmp_path, forks):
    good, other = made(tmp_path / "a", 2), made(tmp_path / "b", 3, key=ADA)
    with pytest.raises(SigInvalid):
        pull(tmp_path / "copy", other, good, forks=forks)
    with open_channel(tmp_path / "copy", "audit") as channel:  # the good source was asked all the same
        assert channel.head().height == 2
