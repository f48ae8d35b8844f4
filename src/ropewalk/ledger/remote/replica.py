"""Replicate a remote channel: copy it block by block, each verified by the rules of ingest.

The replica is a normal channel: it can be read, proved, verified, archived and mirrored, but not appended to, because
its key is not here. The trusted keys are fixed when the replica is made; a server cannot change them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import Disk
from ropewalk.errors import (
    Forked,
    HistoryRewritten,
    NotFound,
    RopewalkError,
    SigInvalid,
    Unavailable,
    Unverified,
)
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.channel.channel import Channel, OpenReplica
from ropewalk.ledger.channel.settings import channels, create_channel, read_settings
from ropewalk.ledger.ingest.ports import Head
from ropewalk.ledger.keys.promotion import is_promotion
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.proof.verify import check_block
from ropewalk.ledger.remote.client import RemoteSettings
from ropewalk.ledger.remote.sync_client import RemoteChannel

FORKS = ("refuse", "longest")  # what a replica does about two histories (S4 §2)
WRITER_WAIT_S = 30.0  # two commands that pull at once stand in line this long


@dataclass(frozen=True, slots=True)
class SourceResult:
    """One of several sources: where it ends, and how that relates to the replica after the pull."""

    url: str
    state: str  # equal, behind, forked, unavailable or failed
    height: int | None = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return what `ledger pull` prints."""
        return {"url": self.url, "state": self.state, "height": self.height, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class ChannelPullResult:
    """What a pull brought: how many blocks and envelopes, where the copy ends now, and whether it was made for it."""

    channel: str
    blocks: int
    envelopes: int
    head: Head
    made: bool
    signer: str
    replaced: str | None = None  # where the shorter history lies that gave way to a longer one
    sources: tuple[SourceResult, ...] = ()  # of a pull from several

    def to_json(self) -> dict[str, Any]:
        """Return what `ledger pull` prints."""
        empty = self.head.height == 0
        return {
            "channel": self.channel,
            "blocks": self.blocks,
            "envelopes": self.envelopes,
            "height": None if empty else self.head.height - 1,
            "block_hash": None if empty else self.head.block_hash.hex(),
            "made": self.made,
            "signer": self.signer,
            **({} if self.replaced is None else {"replaced": self.replaced}),
            **({} if not self.sources else {"sources": [each.to_json() for each in self.sources]}),
        }


def pull_channel(
    remote: RemoteChannel,
    home: Path,
    channel: str,
    *,
    trust: Trust | None = None,
    told: Callable[[int], None] = lambda _height: None,
    forks: str = "refuse",
) -> ChannelPullResult:
    """Fetch what the replica lacks; see `_pull`. Where the server has another history, `forks` decides.

    Both sides of a fork are kept as evidence. `refuse` raises. `longest` copies the other history in full, verified
    from its first block by the keys of the replica, and takes it only if it has a later epoch, or the same epoch and
    more blocks; ours is put aside.
    """
    staged, aside = home / "forks" / f"{channel}.next", home / "ledger" / channel
    if not aside.exists() and (staged / "ledger" / channel).exists():
        Disk().rename(staged / "ledger" / channel, aside)  # a swap that was killed in the middle
    try:
        return _pull(remote, home, channel, trust=trust, told=told)
    except Forked:
        if forks != "longest":
            raise
        return _take_longest(remote, home, channel, staged, told)


Source = RemoteChannel | RopewalkError  # a source that could not be reached is its error


def pull_from(
    sources: Mapping[str, Source],
    home: Path,
    channel: str,
    *,
    trust: Trust | None = None,
    told: Callable[[int], None] = lambda _height: None,
    forks: str = "refuse",
) -> ChannelPullResult:
    """Fetch what the replica lacks from several servers: the longest first, each block verified.

    All heads are asked for at once. A source that cannot be reached, or fails on the way, is passed over. Every other
    source is then compared with the replica at the source's newest block, so that a fork is found and kept as evidence
    also where it is shorter. What is wrong with a source is raised after all were asked; with `longest`, forks are
    reported and not raised.
    """
    with ThreadPoolExecutor(len(sources)) as threads:
        heads = dict(zip(sources, threads.map(_height, sources.values()), strict=True))
    results, raised, pulled = dict[str, SourceResult](), list[RopewalkError](), list[ChannelPullResult]()
    for url in sorted(sources, key=lambda each: _rank(heads[each]), reverse=True):
        remote, height = sources[url], heads[url]
        try:
            if isinstance(remote, RopewalkError):
                raise remote
            if isinstance(height, RopewalkError):
                raise height
            if not _is_here(remote, home, channel, height):
                pulled.append(pull_channel(remote, home, channel, trust=trust, told=told, forks=forks))
                _is_here(remote, home, channel, height)  # Forked if ours is longer and stays
            state, detail = "equal", ""
        except Unavailable as error:
            state, detail = "unavailable", error.detail
        except RopewalkError as error:
            state, detail = "forked" if isinstance(error, Forked) else "failed", error.detail
            if state == "failed" or forks != "longest":
                raised.append(error)
        results[url] = SourceResult(url, state, height if isinstance(height, int) else None, detail)
    if raised:
        raise raised[0]
    if all(each.state == "unavailable" for each in results.values()):
        raise Unavailable(
            f"none of {len(sources)} sources can be reached: {next(iter(results.values())).detail}"
        )
    with Channel(home, channel) as reading:
        head, signer = reading.head(), reading.settings.signer.did()
    if head.height and all((each.height or 0) < head.height - 1 for each in results.values()):
        raise HistoryRewritten(
            f"no source has block {head.height - 1} of channel {channel}, which is here",
            advice="They lost blocks, or are not the ones that were copied. Nothing was changed here.",
        )
    ends = {
        url: replace(each, state="behind")
        for url, each in results.items()
        if each.state == "equal" and (each.height is None or each.height < head.height - 1)
    }
    return ChannelPullResult(
        channel,
        sum(each.blocks for each in pulled),
        sum(each.envelopes for each in pulled),
        head,
        any(each.made for each in pulled),
        signer,
        next((each.replaced for each in pulled if each.replaced is not None), None),
        tuple((results | ends)[url] for url in sources),
    )


def _height(remote: Source) -> int | RopewalkError | None:
    """Return the height of the newest block of a source, None without blocks, or why it does not answer."""
    try:
        found = None if isinstance(remote, RopewalkError) else remote.head().get("height")
    except RopewalkError as error:
        return error
    return found if isinstance(found, int) else None


def _rank(height: int | RopewalkError | None) -> int:
    return height if isinstance(height, int) else -1


def _is_here(remote: RemoteChannel, home: Path, channel: str, height: int | None) -> bool:
    """Return whether the newest block of a source is in the replica; Forked if another one is, and both are kept."""
    _check_promotions(remote, home, channel)
    try:
        with Channel(home, channel) as reading:
            count = reading.head().height
            if height is None or height >= count:
                return height is None and count > 0
            ours = reading.index.block_hash(height)
    except NotFound:
        return False
    for _, lines in remote.blocks(height, height):
        block = Block.from_lines(lines)
        if block.hash != ours:
            with OpenReplica(Channel(home, channel), wait_s=WRITER_WAIT_S) as copy:
                copy.log.insert(block)  # verifies it, keeps both sides and raises
    return True


def _take_longest(
    remote: RemoteChannel, home: Path, channel: str, staged: Path, told: Callable[[int], None]
) -> ChannelPullResult:
    own = home / "ledger" / channel
    trust = Trust((read_settings(home, channel).signer,), ())  # the keys of the replica never change
    shutil.rmtree(staged, ignore_errors=True)
    found = _pull(remote, staged, channel, trust=trust, told=told)
    # No other writer while it is exchanged.
    with OpenReplica(Channel(home, channel), wait_s=WRITER_WAIT_S) as ours:
        head = ours.log.head
        with Channel(staged, channel) as theirs:
            epoch = theirs.key_history().epoch
        if (epoch, found.head.height) <= (ours.log.key_history.epoch, head.height):
            shutil.rmtree(staged)
            return ChannelPullResult(channel, 0, 0, head, False, found.signer)
        kept = home / "forks" / f"{channel}-{head.height}-{head.block_hash.hex()[:16]}"
    Disk().rename(own, kept)
    Disk().rename(staged / "ledger" / channel, own)
    shutil.rmtree(staged)
    return replace(found, made=False, replaced=str(kept))


def _pull(
    remote: RemoteChannel,
    home: Path,
    channel: str,
    *,
    trust: Trust | None = None,
    told: Callable[[int], None] = lambda _height: None,
) -> ChannelPullResult:
    """Fetch what the replica in `home` lacks, verify it, and store it; the first time, create the replica.

    `trust` names the trusted keys. Without it the key that the server names is trusted the first time; later the
    replica knows it. An invalid block raises, and everything before it is kept.
    """
    made = False
    try:
        settings = read_settings(home, channel)
    except NotFound:
        found = remote.settings()
        _check_settings(found, trust)
        # Nothing is left behind for a name or a key that was wrong from the first block on.
        for height, lines in remote.blocks(0, 0):
            fault = check_block(lines, height, trust=Trust((found.signer,), ()), deep=False).fault
            if fault is not None:
                raise Unverified(fault.detail, height=fault.height, step=fault.step) from None
        settings = create_channel(home, channel, found.key, found.signer, found.policy)
        made = True
    if trust is not None and settings.signer not in trust.block_signers:
        raise SigInvalid(f"channel {channel} is sealed by {settings.signer.did()}, which is not trusted")
    _check_promotions(remote, home, channel)
    with Channel(home, channel) as reading:
        before = head = reading.head()
    if _has_more(remote, before, channel):
        with OpenReplica(Channel(home, channel), wait_s=WRITER_WAIT_S) as copy:
            before = copy.log.head
            # From our last block on, which is known: if it is another there, the fork is found and kept.
            for height, lines in remote.blocks(max(0, before.height - 1)):
                copy.log.insert(Block.from_lines(lines))
                told(height + 1)
            head = copy.log.head
    count = head.envelopes - before.envelopes
    return ChannelPullResult(channel, head.height - before.height, count, head, made, settings.signer.did())


def _check_promotions(remote: RemoteChannel, home: Path, channel: str) -> None:
    """Raise Forked if the server was promoted at a height where another block is here, which fences this copy."""
    promotions = [each for each in remote.key_proofs if is_promotion(each.envelope)]
    if not promotions or channel not in channels(home):
        return
    with Channel(home, channel) as reading:
        count = reading.head().height
        known = [
            each.record.height < count and reading.index.block_hash(each.record.height) for each in promotions
        ]
    for each, ours in zip(promotions, known, strict=True):
        if ours and ours != each.record.hash:
            with OpenReplica(Channel(home, channel), wait_s=WRITER_WAIT_S) as copy:
                copy.log.insert(Block(each.record, (each.envelope.raw,)))  # verifies it, keeps it and raises


def _has_more(remote: RemoteChannel, ours: Head, channel: str) -> bool:
    theirs = remote.head()
    height = theirs.get("height")
    last = ours.height - 1
    if ours.height and (not isinstance(height, int) or height < last):
        raise HistoryRewritten(
            f"channel {channel} ends below block {last} there, which is here",
            advice="It lost blocks, or is not the one that was copied. Nothing was changed here.",
        )
    return height is not None and (height, theirs.get("block_hash")) != (last, ours.block_hash.hex())


def _check_settings(found: RemoteSettings, trust: Trust | None) -> None:
    if trust is None:
        return
    if found.signer not in trust.block_signers:
        raise SigInvalid(
            f"the server names {found.signer.did()} as sealer of the channel, which is not trusted",
            advice="Check the address, or use the trust file of its operator.",
        )
    policy = found.policy.hash if found.policy is not None else None
    if trust.policy_hash is not None and policy != trust.policy_hash:
        raise Unverified("the server names another policy than the trust file", step="policy_hash")
