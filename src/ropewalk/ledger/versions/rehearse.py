"""Rehearse a version on a stored channel, find the rehearsals that a channel holds, and check what a change ships."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ropewalk.errors import Denied, Invalid, NotFound, RopewalkError, Unverified
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.block.block import GENESIS
from ropewalk.ledger.channel.channel import Channel, current_policy
from ropewalk.ledger.channel.settings import channels
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.replay.reducers import REDUCERS, Reducer
from ropewalk.ledger.replay.replay import Replay, companion
from ropewalk.ledger.replay.runner import open_fold_runner
from ropewalk.ledger.versions import versions
from ropewalk.ledger.versions.lifecycle import open_minors, read_lifecycle
from ropewalk.ledger.versions.rehearsal import REHEARSED_TYPE, Rehearsal, parse_rehearsal
from ropewalk.ledger.versions.rehearsal_rule import WITHIN_BLOCKS, RehearsalRule
from ropewalk.ledger.versions.statements import VersionAct
from ropewalk.ledger.versions.versions import parse_minor, parse_range

STEPS: Final = 16  # snapshots on the way: a divergence is located to a sixteenth of the channel
ADVICE: Final = "Run `ropewalk ledger lifecycle rehearse {0} --channel {1}`{2}."
Lines = Iterable[tuple[int, list[bytes]]]


def replay_versions(
    home: Path,
    channel: str,
    minors: Sequence[str],
    reducer: Reducer,
    *,
    blocks: int | None = None,
    watch: Callable[[Lines], Lines] | None = None,
) -> tuple[int, bytes, list[tuple[int, list[bytes]]]]:
    """Replay a channel once for each version; return how many blocks, their last hash, and roots on the way."""
    with Channel(home, channel) as reading:
        size = reading.head().height if blocks is None else blocks
        policy = reading.policy
        places = [open_fold_runner(reducer) for _ in minors]
        try:
            runs = [
                Replay(
                    reducer,
                    channel,
                    key_history=reading.key_history(),
                    policy=policy,
                    folding=place,
                    minor=minor,
                )
                for minor, place in zip(minors, places, strict=True)
            ]
            step, roots = -(-size // STEPS) or 1, []
            lines: Lines = reading.lines(0, size - 1)
            for height, found in watch(lines) if watch is not None else lines:
                runs[0].feed(found)
                for run in runs[1:]:
                    run.follow(found)  # the first has verified the block
                if (height + 1) % step == 0 and height + 1 < size:
                    roots.append((height + 1, [run.root() for run in runs]))
            roots.append((runs[0].height + 1, [run.root() for run in runs]))
            if runs[0].height + 1 != size:
                raise Unverified(
                    f"channel {channel} has {runs[0].height + 1} blocks, but {size} were expected"
                )
            return size, runs[0].block_hash if size else GENESIS, roots
        finally:
            for place in places:
                place.close()


def versions_for(home: Path, version: str, *, downgrade: bool = False) -> tuple[str, str]:
    """Return the version in use and the one to rehearse. A downgrade leads from the newest version to an older one."""
    target, known = parse_range(version), {life.minor for life in versions.LIFECYCLE}
    if f"{target[0]}.{target[1]}" not in known:
        raise NotFound(f"version {version} is unknown to this installation", version=version)
    in_use = sorted(
        parse_minor(life.minor)
        for life in read_lifecycle(home)
        if life.minor in known and life.stage != "disabled"
    )
    found = [each for each in in_use if (each > target if downgrade else each < target)]
    if not found:
        raise Invalid(
            f"version {version} is the {'newest' if downgrade else 'oldest'} one in use; there is no other to "
            f"{'come back' if downgrade else 'upgrade'} from",
            advice="Rehearse a newer version."
            if downgrade
            else "Rehearse the way back to it with --downgrade.",
        )
    return "{}.{}.x".format(*found[-1]), "{}.{}.x".format(*target)


def rehearse(
    home: Path,
    channel: str,
    source: str,
    target: str,
    reducer: Reducer = REDUCERS["counts"],
    *,
    blocks: int | None = None,
    watch: Callable[[Lines], Lines] | None = None,
) -> Rehearsal:
    """Replay a channel through the adapters of two versions; the caller checks `fault()`."""
    minors = [text.removesuffix(".x") for text in (source, target)]
    size, block_hash, roots = replay_versions(home, channel, minors, reducer, blocks=blocks, watch=watch)
    policy = current_policy(home, channel)
    return Rehearsal(
        channel,
        source,
        target,
        reducer.name,
        size,
        block_hash,
        None if policy is None else policy.hash,
        tuple((at, pair[0], pair[1]) for at, pair in roots),
    )


def find_rehearsals(reading: Channel) -> Iterator[tuple[Envelope, Rehearsal]]:
    """Yield the rehearsals of a channel that it holds, oldest first; who signed them is for the caller to judge."""
    hint = REHEARSED_TYPE.encode()
    for _, lines in reading.lines():
        for raw in lines[1:]:
            if hint not in raw:
                continue
            envelope = parse_stored(raw)
            if envelope.event_type != REHEARSED_TYPE:
                continue
            try:
                found = parse_rehearsal(envelope.payload)
            except RopewalkError:
                continue  # any author may write an envelope of that type
            if found.channel == reading.settings.channel:
                yield envelope, found


def policy_hashes(home: Path) -> dict[str, str]:
    """Return the policy hash of every channel that has a policy, without channels of snapshots."""
    names = set(channels(home))
    found = {name: current_policy(home, name) for name in names}
    return {
        name: policy.hash.hex()
        for name, policy in sorted(found.items())
        if policy is not None and not any(name == companion(each) for each in names)
    }


def newest_transcript(home: Path, channel: str, version: str) -> str:
    """Return the id of the newest rehearsal in a channel that tried a version, in either direction."""
    with Channel(home, channel) as reading:
        ids = [
            envelope.hex_id
            for envelope, found in find_rehearsals(reading)
            if version in (found.source, found.target)
        ]
    if not ids:
        raise Denied(
            f"channel {channel} holds no rehearsal of version {version}",
            advice=ADVICE.format(version, channel, ""),
        )
    return ids[-1]


@dataclass(slots=True)
class ShippedCheck:
    """Checks what a version change ships: its documents, and the rehearsals that policies ask for.

    No rehearsal is believed: each is computed again, with a built-in reducer or the one the caller names.
    """

    home: Path
    act: VersionAct
    reducer: Reducer | None
    now_ns: int

    def require(self, asking: Iterable[str]) -> None:
        """Raise `Denied` unless the documents match, and every asking channel has the rehearsals it requires."""
        act, shipped = self.act, self.act.documents
        if shipped is None:
            raise Denied(
                f"the change of version {act.protocol_version} ships no migration guide and no transcript",
                advice="Name the guide with --guide; the transcript is a rehearsal that the channel holds.",
            )
        if shipped.policies != policy_hashes(self.home):
            raise Denied(
                "the policy hashes of the change are not those of this repository's channels",
                advice="Propose the change again.",
            )
        with Channel(self.home, act.channel) as reading:
            name = hash_from_hex(shipped.transcript)
            found = next((each for each in find_rehearsals(reading) if each[0].id == name), None)
            if found is None:
                raise Denied(
                    f"channel {act.channel} holds no rehearsal {shipped.transcript[:16]}…",
                    advice=ADVICE.format(act.protocol_version, act.channel, ""),
                )
            if act.protocol_version not in (found[1].source, found[1].target):
                raise Denied(
                    f"rehearsal {shipped.transcript[:16]}… did not try version {act.protocol_version}"
                )
            if found[1].blocks < reading.head().height - WITHIN_BLOCKS:
                raise Denied(
                    f"rehearsal {shipped.transcript[:16]}… ends more than {WITHIN_BLOCKS} blocks below the head",
                    advice=ADVICE.format(act.protocol_version, act.channel, ""),
                )
            self._compute_again(reading, found[1])
        for channel in asking:
            self._require_followers(channel)

    def _require_followers(self, channel: str) -> None:
        """Raise unless enough followers rehearsed a version that the channel does not accept yet."""
        policy = current_policy(self.home, channel)
        minor = self.act.protocol_version.removesuffix(".x")
        if (
            policy is None
            or self.act.stage == "disabled"
            or minor in open_minors(self.home, policy, self.now_ns)
        ):
            return
        with Channel(self.home, channel) as reading:
            own = {validity.key for validity in reading.key_history().validities}
            held = [(envelope.public_key, found) for envelope, found in find_rehearsals(reading)]
            held = [each for each in held if each[0] not in own]  # a primary is not its own follower
            for rule in policy.rehearsals:
                self._require_rule(reading, rule, held, downgrade=False)
                if rule.downgrade:
                    self._require_rule(reading, rule, held, downgrade=True)

    def _require_rule(
        self,
        reading: Channel,
        rule: RehearsalRule,
        held: list[tuple[PublicKey, Rehearsal]],
        *,
        downgrade: bool,
    ) -> None:
        version, floor = self.act.protocol_version, reading.head().height - rule.within_blocks
        newest: dict[str, Rehearsal] = {}
        for key, found in held:
            tried = found.source if downgrade else found.target
            if tried == version and found.downgrade == downgrade and found.blocks >= floor:
                newest |= {name: found for name, each in rule.followers if each == key}
        if len(newest) < rule.rehearsals:
            have = f"only {', '.join(sorted(newest))}" if newest else "none"
            raise Denied(
                f"{rule.rehearsals} follower(s) of channel {reading.settings.channel} must rehearse "
                f"{'the way back from ' if downgrade else ''}version {version} first, within {rule.within_blocks} "
                f"blocks of its head; {have} did",
                advice=ADVICE.format(
                    "OLDER --downgrade" if downgrade else version,
                    reading.settings.channel,
                    " on a follower, and append the envelope that it writes with -o",
                ),
            )
        for found in newest.values():
            self._compute_again(reading, found)

    def _compute_again(self, reading: Channel, said: Rehearsal) -> None:
        """Raise unless the rehearsal holds and a replay of the same blocks here gives the same roots."""
        fault = said.fault()
        if fault is None and said.blocks > reading.head().height:
            fault = f"it covers {said.blocks} blocks, but the channel has only {reading.head().height}"
        reducer = REDUCERS.get(said.reducer)
        if reducer is None and self.reducer is not None and self.reducer.name == said.reducer:
            reducer = self.reducer  # the operator names it: code that data names is never run
        if fault is None and reducer is None:
            fault = f"it used reducer {said.reducer[:80]}; name the same with --reducer to compute it again"
        if fault is None and reducer is not None:
            ours = rehearse(self.home, said.channel, said.source, said.target, reducer, blocks=said.blocks)
            same = all(getattr(ours, name) == getattr(said, name) for name in ("block_hash", "policy_hash"))
            if not same or ours.snapshots[-1] != said.snapshots[-1]:
                fault = "a replay of the same blocks here gives other roots"
        if fault is not None:
            raise Denied(f"a rehearsal of version {said.target} does not hold: {fault}")
