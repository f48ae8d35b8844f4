"""Replay (S4 §11): fold a channel's events into a state, identified by its root.

A block is verified before any of its events reaches the reducer: its signature, its link to the block below, its
root, and every envelope by the rules that need no channel. The block gives the time. The policy is fixed: a block made
under another one is rejected. So the same blocks and the same reducer always give the same root.

A *snapshot* is the state at a height, signed in an envelope `ledger.checkpoint`; a replay can resume from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol, cast

from ropewalk.errors import BrokenLink, DigestMismatch, Invalid, RopewalkError, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag, blake3, tagged
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import GENESIS, Block, Header, check_contents, check_link
from ropewalk.ledger.envelope.adapt import read_as
from ropewalk.ledger.envelope.envelope import build, parse_stored
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.evidence.binding import make_provenance
from ropewalk.ledger.keys.history import KeyHistory, KeyProof
from ropewalk.ledger.keys.statements import is_key_statement
from ropewalk.ledger.replay.encoded_state import EncodedState
from ropewalk.ledger.replay.reducers import FoldContext, Reducer, State
from ropewalk.ledger.rules.policy import EVALUATOR, Policy
from ropewalk.ledger.rules.rules import judge
from ropewalk.ledger.rules.verdict import Context

SNAPSHOT_TYPE: Final = "ledger.checkpoint"
ALERT_TYPE: Final = "ledger.replay.diverged"
DOMAIN: Final = "ropewalk.replay"
_MEMBERS: Final = frozenset(
    ("channel", "height", "block_hash", "state_root", "policy_hash", "attestation_digest", "evaluator")
)


def companion(channel: str) -> str:
    """Return the name of the channel that holds the snapshots of another.

    >>> companion("ea.core")
    'ea.core.snapshots'
    """
    return f"{channel}.snapshots"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a `ledger.checkpoint`: the state at a height, by its root."""

    channel: str
    height: int
    block_hash: bytes
    state_root: bytes
    policy_hash: bytes | None
    attestation_digest: bytes | None
    evaluator: str
    state_map_root: bytes | None = None  # absent in snapshots of version 0.1

    def to_json(self) -> dict[str, Any]:
        """Return the payload of its envelope."""
        of_map = {} if self.state_map_root is None else {"state_map_root": self.state_map_root.hex()}
        return {
            **of_map,
            "channel": self.channel,
            "height": self.height,
            "block_hash": self.block_hash.hex(),
            "state_root": self.state_root.hex(),
            "policy_hash": None if self.policy_hash is None else self.policy_hash.hex(),
            "attestation_digest": None if self.attestation_digest is None else self.attestation_digest.hex(),
            "evaluator": self.evaluator,
        }


@dataclass(frozen=True, slots=True)
class ReplayDivergence:
    """Two replays of one range gave different states. `agreed` is the last height with equal states."""

    channel: str
    height: int
    expected: bytes
    got: bytes
    agreed: int | None
    policy_hash: bytes | None
    evaluator: str

    def to_json(self) -> dict[str, Any]:
        """Return the payload of the alert."""
        return {
            "channel": self.channel,
            "height": self.height,
            "expected_state_root": self.expected.hex(),
            "got_state_root": self.got.hex(),
            "agreed_height": self.agreed,
            "policy_hash": None if self.policy_hash is None else self.policy_hash.hex(),
            "evaluator": self.evaluator,
            "reproduction": {"start_height": self.start, "end_height": self.height},
        }

    @property
    def start(self) -> int:
        """The first block needed to reproduce it."""
        return 0 if self.agreed is None else self.agreed + 1


class FoldRunner(Protocol):
    """Runs a reducer and holds its state."""

    def begin(self, state: State) -> None:
        """Resume from a state."""

    def fold(self, events: Sequence[dict[str, Any]], moment: FoldContext) -> None:
        """Fold the events of one block."""

    def state(self) -> State:
        """Return the state now."""

    def close(self) -> None:
        """Release its resources."""


class LocalFoldRunner:
    """A reducer in this process.

    >>> from ropewalk.ledger.replay.reducers import REDUCERS
    >>> folding = LocalFoldRunner(REDUCERS["registers"])
    >>> folding.state()
    {}
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer, self._state = reducer, reducer.initial()

    def begin(self, state: State) -> None:
        self._state = state

    def fold(self, events: Sequence[dict[str, Any]], moment: FoldContext) -> None:
        """Pass verified events to the reducer, in order."""
        fold, state = self._reducer.fold, self._state
        try:
            for event in events:
                state = fold(state, event, moment)
        except RopewalkError:
            raise
        except Exception as error:  # user code: its errors are not our defects
            raise Invalid(
                f"reducer {self._reducer.name} failed in block {moment.height}: {error!r}",
                height=moment.height,
                reducer=self._reducer.name,
                advice="Fix the reducer; it must accept every event of the channel.",
            ) from error
        self._state = state

    def state(self) -> State:
        return self._state

    def close(self) -> None:
        """Do nothing."""


class Replay:
    """A fold over a channel. Feed it blocks in order; read its state, its root, or a snapshot.

    >>> from ropewalk.ledger.replay.reducers import REDUCERS
    >>> Replay(REDUCERS["counts"], "ea.core").root().hex()[:8]
    'cf3c1c31'
    """

    def __init__(
        self,
        reducer: Reducer,
        channel: str,
        *,
        key_history: KeyHistory | None = None,
        policy: Policy | None = None,
        folding: FoldRunner | None = None,
        minor: str | None = None,
    ) -> None:
        """Start a replay.

        `key_history` defines the valid signing keys; without it any valid signature is accepted. `folding` runs the
        reducer. `minor` is the version whose adapter reads the events; without it they are folded as they are stored.
        """
        self.reducer, self.channel, self._minor = reducer, channel, minor
        self._folding = folding or LocalFoldRunner(reducer)
        self.height = -1
        self.envelopes = 0
        self._block_hash = GENESIS
        self._below: Header | None = None
        self._evidence: bytes | None = None
        self._key_history = key_history or KeyHistory(None)
        self._policy = policy
        self._encoded: EncodedState | None = None

    @property
    def state(self) -> State:
        return self._folding.state()

    @property
    def encoded(self) -> EncodedState:
        """The state in canonical bytes, encoded once after each block."""
        if self._encoded is None:
            self._encoded = EncodedState(self.state)
        return self._encoded

    @property
    def block_hash(self) -> bytes:
        """The last block that was folded."""
        return self._block_hash

    @property
    def evaluator(self) -> str:
        """The name of what computed the state: our rules, then the reducer."""
        return f"{EVALUATOR} {self.reducer.name}"

    def resume(self, snapshot: Snapshot, state: State) -> None:
        """Resume from a snapshot whose envelope was verified. The state must have its root."""
        if snapshot.channel != self.channel or snapshot.evaluator != self.evaluator:
            raise Invalid(
                f"a snapshot of {snapshot.channel} by {snapshot.evaluator}, not by {self.evaluator}"
            )
        self._check_policy(snapshot.policy_hash, snapshot.height, f"snapshot at {snapshot.height}")
        encoded = EncodedState(state)
        got = encoded.root
        if got != snapshot.state_root:
            raise DigestMismatch(
                f"the state kept for height {snapshot.height} has root {got.hex()}, the snapshot names "
                f"{snapshot.state_root.hex()}",
                expected=snapshot.state_root.hex(),
                got=got.hex(),
                where="state_root",
            )
        self._folding.begin(state)
        self._encoded = encoded
        self.height, self._block_hash = snapshot.height, snapshot.block_hash
        self._below, self._evidence = None, snapshot.attestation_digest

    def feed(self, lines: Sequence[bytes]) -> None:
        """Verify the next block, then fold its events. On an error the state is unchanged."""
        block = Block.from_lines(lines)
        self._check_place(block)
        self._key_history.check(block.record, KeyProof.of(block))
        self._key_history.take(block)
        self._take(block, self._judged(block))

    def follow(self, lines: Sequence[bytes]) -> None:
        """Fold the next block of a range whose signatures and envelopes the caller has just verified.

        Its link, contents and policy are checked again: that is cheap, and it makes the range one chain.
        """
        block = Block.from_lines(lines)
        self._check_place(block)
        self._take(block, [cast("dict[str, Any]", jcs.parse(raw)) for raw in block.envelopes])

    def fold(self, events: Sequence[dict[str, Any]], moment: FoldContext) -> None:
        """Pass verified events to the reducer, in order."""
        self._encoded = None
        self._folding.fold(events, moment)
        self.envelopes += len(events)

    def root(self) -> bytes:
        return self.encoded.root

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.channel,
            self.height,
            self._block_hash,
            self.root(),
            self._policy_hash_at(self.height),
            self._evidence,
            self.evaluator,
            self.encoded.map_root,
        )

    @property
    def now_ns(self) -> int:
        """The time of the last block."""
        return 0 if self._below is None else self._below.timestamp_ns

    def compare(self, recorded: Snapshot, agreed: int | None) -> ReplayDivergence | None:
        """Return the difference between the current state and one recorded at this height, if any."""
        got = self.root()
        mapped = None if recorded.state_map_root is None else self.encoded.map_root
        if (recorded.state_root, recorded.block_hash, recorded.state_map_root) == (
            got,
            self._block_hash,
            mapped,
        ):
            return None
        return ReplayDivergence(
            self.channel,
            self.height,
            recorded.state_root,
            got,
            agreed,
            self._policy_hash_at(self.height),
            self.evaluator,
        )

    def _check_place(self, block: Block) -> None:
        self._check_link(block.header)
        check_contents(block)
        self._check_policy(block.header.policy_hash, block.height, f"block {block.height}")

    def _judged(self, block: Block) -> list[dict[str, Any]]:
        header = block.header
        events = []
        for index, raw in enumerate(block.envelopes):
            try:
                envelope = parse_stored(raw)
                context = Context(
                    None, self.policy_at(header.height), policy_hash=header.policy_hash, sealed=True
                )
                if len(block.envelopes) == 1 and is_key_statement(envelope):
                    context = replace(context, policy=None)  # the key history has checked it
                if self._key_history.revoked:
                    self._key_history.check_author(envelope, header.height, header.timestamp_ns)
                verdict = judge(envelope, context)
                if not verdict.ok:
                    verdict.require()
            except RopewalkError as error:
                raise Unverified(
                    f"block {header.height}, envelope {index}: {error.detail}",
                    height=header.height,
                    index=index,
                ) from error
            events.append(envelope.value)
        return events

    def _take(self, block: Block, events: list[dict[str, Any]]) -> None:
        header, evidence = block.header, self._evidence
        for event in events:
            if "attestation_evidence" in event:
                said = event["attestation_evidence"]["evidence_hash"].encode()
                evidence = tagged(Tag.CHECKPOINT, evidence or b"", blake3(said))
        if self._minor is not None:
            events = [read_as(event, (header.height, n), self._minor) for n, event in enumerate(events)]
        self.fold(events, FoldContext(self.channel, header.height, header.timestamp_ns))
        self._below, self._block_hash, self.height = header, header.hash, header.height
        self._evidence = evidence

    def _check_link(self, header: Header) -> None:
        if header.channel != self.channel:
            raise BrokenLink(
                f'block {header.height}: channel must be "{self.channel}", got "{header.channel}"'
            )
        if self._below is not None or self.height < 0:
            check_link(self._below, header)
        elif (header.height, header.prev_block_hash) != (self.height + 1, self._block_hash):
            raise BrokenLink(f"block {header.height} does not follow the snapshot at {self.height}")

    def policy_at(self, height: int) -> Policy | None:
        """Return the policy in force at a height: the given one, or that of the last rotation below."""
        return self._key_history.policies.at(height) or self._policy

    def _policy_hash_at(self, height: int) -> bytes | None:
        policy = self.policy_at(height)
        return None if policy is None else policy.hash

    def _check_policy(self, found: bytes | None, height: int, what: str) -> None:
        expected = self._policy_hash_at(height)
        if found != expected:
            names = [each.hex()[:16] + "…" if each is not None else "none" for each in (found, expected)]
            raise Unverified(
                f"{what} has policy {names[0]}, but the replay has policy {names[1]}",
                advice="Replay with the policy bundle the blocks were made under.",
            )


def snapshot_envelope(
    snapshot: Snapshot, key: SigningKey, timestamp_ns: int, protocol_version: str = "1.0.0"
) -> Envelope:
    """Return the snapshot as a signed envelope: an Attestation whose evidence is the provenance of the state.

    The time is the block's, so the same replay gives the same envelope, and appending it again changes nothing.

    >>> snapshot = Snapshot("ea.core", 3, bytes(32), bytes(32), None, None, "ropewalk/1 counts")
    >>> one = snapshot_envelope(snapshot, SigningKey.generate("ed25519", bytes(32)), 1_500_000_000)
    >>> one.timestamp, parse_snapshot(one) == snapshot
    ('1970-01-01T00:00:01.500000000Z', True)
    """
    payload = snapshot.to_json()
    return build(
        key,
        domain=DOMAIN,
        event_class="Attestation",
        event_type=SNAPSHOT_TYPE,
        protocol_version=protocol_version,
        payload=cast(jcs.Json, payload),
        timestamp=_timestamp(timestamp_ns),
        evidence=_provenance(snapshot, blake3(jcs.encode(payload)).hex(), key),
    )


def parse_snapshot(envelope: Envelope) -> Snapshot:
    """Parse a `ledger.checkpoint` envelope; only the form is checked."""
    payload = envelope.payload
    if (
        envelope.event_type != SNAPSHOT_TYPE
        or not isinstance(payload, dict)
        or payload.keys() - {"state_map_root"} != _MEMBERS
    ):
        raise Invalid(f"envelope {envelope.hex_id} is not a snapshot")
    value = cast("dict[str, Any]", payload)
    try:
        return Snapshot(
            str(value["channel"]),
            int(value["height"]),
            bytes.fromhex(value["block_hash"]),
            bytes.fromhex(value["state_root"]),
            None if value["policy_hash"] is None else bytes.fromhex(value["policy_hash"]),
            None if value["attestation_digest"] is None else bytes.fromhex(value["attestation_digest"]),
            str(value["evaluator"]),
            bytes.fromhex(value["state_map_root"]) if "state_map_root" in value else None,
        )
    except (TypeError, ValueError) as error:
        raise Invalid(f"envelope {envelope.hex_id} is not a snapshot") from error


def alert_of(
    divergence: ReplayDivergence,
    key: SigningKey,
    timestamp_ns: int,
    bundle: dict[str, Any] | None = None,
    protocol_version: str = "1.0.0",
) -> Envelope:
    """Return the divergence as an `Alert`. `bundle` names the location and digest of its reproduction.

    >>> wrong = ReplayDivergence("ea.core", 9, bytes(32), bytes(32), 4, None, "ropewalk/1 counts")
    >>> alert = alert_of(wrong, SigningKey.generate("ed25519", bytes(32)), 0)
    >>> alert.event_class, alert.payload["reproduction"]
    ('Alert', {'start_height': 5, 'end_height': 9})
    """
    payload = divergence.to_json()
    payload["reproduction"] = {**payload["reproduction"], **(bundle or {})}
    return build(
        key,
        domain=DOMAIN,
        event_class="Alert",
        event_type=ALERT_TYPE,
        protocol_version=protocol_version,
        payload=cast(jcs.Json, payload),
        timestamp=_timestamp(timestamp_ns),
        correlation_id=f"replay:{divergence.channel}:{divergence.height}:{divergence.got.hex()[:16]}",
    )


def _provenance(snapshot: Snapshot, payload_hash: str, key: SigningKey) -> dict[str, jcs.Json]:
    """Return evidence whose subject is the snapshot (S4 §6, `slsa.v1`)."""
    return make_provenance(
        key,
        payload_hash,
        builder=f"urn:ropewalk:{snapshot.evaluator.replace(' ', ':')}",
        build_type="urn:ropewalk:replay:v1",
        name=SNAPSHOT_TYPE,
        parameters={"channel": snapshot.channel, "height": snapshot.height},
        dependencies=(snapshot.block_hash.hex(),),
    )


def _timestamp(ns: int) -> str:
    moment = datetime.fromtimestamp(ns // 10**9, UTC)
    return f"{moment.strftime('%Y-%m-%dT%H:%M:%S')}.{ns % 10**9:09d}Z"
