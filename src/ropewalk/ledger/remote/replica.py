"""Replicate a remote channel: copy it block by block, each verified by the rules of ingest.

The replica is a normal channel: it can be read, proved, verified, archived and mirrored, but not appended to, because
its key is not here. The trusted keys are fixed when the replica is made; a server cannot change them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import Disk
from ropewalk.errors import Forked, HistoryRewritten, NotFound, SigInvalid, Unverified
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.channel.channel import Channel, OpenLog
from ropewalk.ledger.channel.settings import create_channel, read_settings
from ropewalk.ledger.ingest.ports import Head
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.proof.verify import check_block
from ropewalk.ledger.remote.client import RemoteSettings
from ropewalk.ledger.remote.sync_client import RemoteChannel

FORKS = ("refuse", "longest")  # what a replica does about two histories (S4 §2)
WRITER_WAIT_S = 30.0  # two commands that pull at once stand in line this long


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

    def to_json(self) -> dict[str, Any]:
        """As `ledger pull` prints it."""
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
        }


class OpenReplica(OpenLog):
    """A replica open for blocks sealed by its origin. It seals none."""

    def __init__(self, channel: Channel, **options: Any) -> None:
        super().__init__(channel, SigningKey.generate("ed25519", os.urandom(32)), **options)

    def _check_keys(self, keys: Sequence[SigningKey], key_history: Any, now_ns: int) -> None:
        """Accept any keys: without a key of the channel no block can be sealed here."""


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
    from its first block by the keys of the replica, and takes it only if it has more blocks; ours is put aside.
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


def _take_longest(
    remote: RemoteChannel, home: Path, channel: str, staged: Path, told: Callable[[int], None]
) -> ChannelPullResult:
    own = home / "ledger" / channel
    trust = Trust((read_settings(home, channel).signer,), ())  # the keys of the replica never change
    shutil.rmtree(staged, ignore_errors=True)
    found = _pull(remote, staged, channel, trust=trust, told=told)
    with OpenReplica(
        Channel(home, channel), wait_s=WRITER_WAIT_S
    ) as ours:  # no other writer while it is exchanged
        head = ours.log.head
        if found.head.height <= head.height:
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
