"""The keys of a channel, one after another: whose seal counts at which height and time (S4 §13).

A verifier names keys in its trust file. What the channel itself says about keys (`keyacts`) changes whose seal counts
*above* the block that says it, never below, so that nothing that was sealed is undone:

- a rotation lets the new key count since its date, and the old one until its own; each key gives way once
- a retirement, a destruction or a revocation ends a key that has given way
- what a revoked key signs since the date of the revocation is refused in blocks above it; what stood there stands

A trust file may limit and revoke keys too; then the dates hold at every height, for the verifier says so.

If the trust file names only a later key, blocks below cannot be judged by it: they are *not checked*, and only if a
rotation leads from the key that sealed them to one that is named. All others are refused, as a stranger's are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from ropewalk.errors import Invalid, RopewalkError, SigInvalid, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.block.block import Block, BlockRecord, check_signature, parse_record
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.keys.approvals import require_approvals
from ropewalk.ledger.keys.statements import KeyAct, KeyStatement, maybe_key_statement, parse_key_statement
from ropewalk.ledger.keys.validity import KeyRevocation, KeyValidity, SigningRun
from ropewalk.ledger.rules.rules import rule_1_canonical_hash, rule_2_signature_scope
from ropewalk.ledger.rules.verdict import Context

if TYPE_CHECKING:
    from ropewalk.ledger.proof.trust import Trust
    from ropewalk.ledger.rules.policy import Policy

PROOFS_MAX: Final = 4_096  # a key a day for ten years
_FOREVER: Final = -1  # the height above which a trust file's dates hold


@dataclass(frozen=True, slots=True)
class KeyProof:
    """A statement about keys with the sealed block that holds it and nothing else: its root is the envelope's id."""

    record: BlockRecord
    envelope: Envelope

    @classmethod
    def of(cls, block: Block) -> KeyProof | None:
        """The proof that a block is, if it holds a statement about keys alone."""
        if len(block.envelopes) != 1 or not maybe_key_statement(block.envelopes[0]):
            return None
        return cls(block.record, parse_stored(block.envelopes[0]))

    def to_json(self) -> dict[str, Any]:
        """As bundles, proofs and archives carry it."""
        return {"block": jcs.parse(self.record.raw), "envelope": self.envelope.value}


def parse_key_proofs(value: Any) -> tuple[KeyProof, ...]:
    """Proofs from a JSON list, the lowest first; form only.

    >>> parse_key_proofs([{}])
    Traceback (most recent call last):
    ropewalk.errors.Invalid: keys: each has block and envelope
    """
    if not isinstance(value, list) or not 1 <= len(value) <= PROOFS_MAX:
        raise Invalid(f"keys: a list of 1 to {PROOFS_MAX} statements, or left out")
    found: list[KeyProof] = []
    for each in value:
        if not isinstance(each, dict) or each.keys() != {"block", "envelope"}:
            raise Invalid("keys: each has block and envelope")
        record = parse_record(jcs.encode(each["block"]))
        if found and record.height <= found[-1].record.height:
            raise Invalid("keys: the lowest comes first, and each height once")
        found.append(KeyProof(record, parse_stored(jcs.encode(each["envelope"]))))
    return tuple(found)


class KeyHistory:
    """Whose seals count, as far as blocks were looked at; give it every block in order, or proofs first.

    `lenient`: the first block may be sealed by a key that is not named, if a rotation leads from it to one that is.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> from ropewalk.ledger.proof.trust import Trust
    >>> key = SigningKey.generate("ed25519", bytes(32)).public
    >>> KeyHistory(Trust((key,), ())).current.key == key
    True
    """

    def __init__(self, trust: Trust | None, *, policy: Policy | None = None, lenient: bool = False) -> None:
        self._anybody, self._policy, self._lenient = trust is None, policy, lenient
        self._validities: dict[PublicKey, KeyValidity] = {}
        self._statements: dict[int, bytes] = {}
        self._begun = self._leads = self._vouched = False
        self._unnamed: list[int] = []  # first and last height that an unnamed key sealed
        self._unnamed_key: PublicKey | None = None
        self.revoked: dict[bytes, list[KeyRevocation]] = {}
        self.runs: list[SigningRun] = []
        self._free: PublicKey | None = None
        self._current: KeyValidity | None = None
        self.complete = (
            False  # every statement of the channel was followed: a block with another one is refused
        )
        self.stand = 0  # envelopes of revoked keys, from before
        if trust is None:
            return
        for key in trust.block_signers:
            since_ns, until_ns = trust.limits.get(key, (0, None))
            ends = ((_FOREVER, until_ns),) if until_ns is not None else ()
            self._validities[key] = KeyValidity(key, since_ns=since_ns, ends=ends)
        for each in trust.revocations:
            self._revoke(each.key, KeyRevocation(_FOREVER, each.since_ns, each.reason))

    # --- who there is -----------------------------------------------------------------------------------------------

    @property
    def validities(self) -> tuple[KeyValidity, ...]:
        """Every key that was named or became known, in that order."""
        return tuple(self._validities.values())

    @property
    def current(self) -> KeyValidity:
        """The newest key: the last that has not given way."""
        if self._current is None:  # asked for every block
            self._current = next(
                validity for validity in reversed(self._validities.values()) if validity.successor is None
            )
        return self._current

    @property
    def heights(self) -> tuple[int, ...]:
        """Where statements about keys stand, as far as they were looked at."""
        return tuple(self._statements)

    def validity(self, key: PublicKey) -> KeyValidity | None:
        """The life of a key, if it is known."""
        return self._validities.get(key)

    def find(self, fingerprint: bytes) -> KeyValidity | None:
        """The life of a key by its fingerprint."""
        return next(
            (validity for key, validity in self._validities.items() if key.identity() == fingerprint), None
        )

    def descends(self, key: PublicKey, named: Iterable[PublicKey]) -> bool:
        """Whether a key is one of those, or proven to have followed one of them."""
        known = set(named)
        for each in tuple(known):
            validity = self._validities.get(each)
            while validity is not None and validity.successor is not None and validity.successor not in known:
                known.add(validity.successor)
                validity = self._validities.get(validity.successor)
        return key in known

    # --- blocks -----------------------------------------------------------------------------------------------------

    def check(self, record: BlockRecord) -> None:
        """Raise unless the seal holds and is of a key that counts there."""
        self.admit(record)
        check_signature(record)

    def admit(self, record: BlockRecord) -> None:
        """Raise unless the key that a block names counts there; the seal itself is not checked."""
        signer, height = record.signer, record.header.height
        if signer != self._free:
            self._judge(signer, height, record.header.timestamp_ns)
        run = self.runs[-1] if self.runs else None
        if run is not None and run.key == signer:
            run.last = height
        else:
            self.runs.append(SigningRun(signer, height, height))

    def _judge(self, signer: PublicKey, height: int, at_ns: int) -> None:
        self._free = None
        if not self._anybody:
            validity = self._validities.get(signer)
            if validity is None:
                if self._begun or not self._lenient:
                    raise SigInvalid(f"block {height}: signer {signer.did()} is not trusted", height=height)
                validity = self._validities[signer] = KeyValidity(signer, named=False)
                self._current = None
            elif not validity.is_valid(height, at_ns):
                sealed, why = format_timestamp(at_ns), self._why(signer)
                raise SigInvalid(
                    f"block {height}: sealed on {sealed} with {signer.did()}, which {validity.explain()}{why}",
                    height=height,
                )
            if validity.named:
                self._vouched = self._vouched or self._leads
                # Nothing limits it: most channels have one key, and thousands of blocks.
                self._free = signer if validity == KeyValidity(signer) else None
            else:
                self._unnamed = [*self._unnamed[:1], height]
                self._unnamed_key = self._unnamed_key or signer
        self._begun = True

    def take(self, block: Block) -> bool:
        """Learn from a block that was checked what it says about keys; whether it says anything."""
        if len(block.envelopes) != 1 or (proof := KeyProof.of(block)) is None:
            return False
        self.learn(proof)
        return True

    def learn(self, proof: KeyProof) -> None:
        """Take a statement whose block was checked into account; raises where it does not hold."""
        record, known = proof.record, self._statements.get(proof.record.height)
        if known == record.hash:
            return
        try:
            if known is not None:
                raise Unverified("two blocks of that height speak about keys")
            if proof.envelope.id != record.header.merkle_root or record.header.envelope_count != 1:
                raise Unverified("its envelope is not the one that its block holds alone")
            same = self._policy is not None and self._policy.hash == record.header.policy_hash
            policy = self._policy if same else None
            said = self.look(proof.envelope, record.signer, record.header.channel, policy)
        except RopewalkError as error:
            raise Unverified(
                f"block {record.height}: its statement about keys does not hold: {error.detail}",
                height=record.height,
            ) from error
        self._apply(said.act, record.height)
        self._statements[record.height] = record.hash

    def follow(self, proofs: Iterable[KeyProof]) -> None:
        """Take proofs that lie outside of what is judged: they say who counts, and are no part of it."""
        for each in proofs:
            before, self.runs = self.runs, []
            unnamed, first = self._unnamed, self._unnamed_key
            self.check(each.record)
            self.learn(each)
            self.runs, self._unnamed, self._unnamed_key = before, unnamed, first

    def check_author(self, envelope: Envelope, height: int, at_ns: int) -> None:
        """Raise if the author's key was revoked before a block of that height and time."""
        for each in self.revoked.get(envelope.public_key.identity(), ()):
            if height > each.above and at_ns >= each.since_ns:
                raise SigInvalid(
                    f"signed with {envelope.public_key.did()}, revoked since {format_timestamp(each.since_ns)}"
                    f"{_reason(each)}"
                )
            self.stand += 1

    # --- what came of it --------------------------------------------------------------------------------------------

    @property
    def stranger(self) -> tuple[int, PublicKey] | None:
        """The first block that a key sealed which nobody named, and that key, unless it leads to one that is named."""
        if not self._unnamed or self._vouched or self._unnamed_key is None:
            return None
        return self._unnamed[0], self._unnamed_key

    @property
    def leads(self) -> bool:
        """Whether a rotation leads from the key that is not named to one that is."""
        return self._leads

    @property
    def unjudged(self) -> str:
        """What cannot be judged because only a later key is named; empty if all can."""
        if not self._unnamed or self._unnamed_key is None:
            return ""
        first, last = self._unnamed[0], self._unnamed[-1]
        return (
            f"blocks {first}–{last} are sealed by {self._unnamed_key.did()} or a key that followed it, and the trust "
            "file names only a later one: whether that key counted then cannot be judged"
        )

    def summary(self) -> str:
        """Who sealed what, where it was more than one key or one that was revoked; else empty."""
        words = []
        if len(self.runs) > 1:
            shown = [f"{_span(run)} by {run.key.did()}" for run in self.runs[:4]]
            rest = f", and so on {len(self.runs) - 4} times" if len(self.runs) > 4 else ""
            words.append(f"{', '.join(shown)}{rest}, each while it counted")
        revoked = {run.key for run in self.runs if run.key.identity() in self.revoked}
        words += [
            f"{key.did()} was revoked later: what it sealed before stands" for key in sorted_keys(revoked)
        ]
        if self.stand:
            words.append(f"{self.stand} envelopes of keys that were revoked later stand")
        return "; ".join(words)

    # --- inside -----------------------------------------------------------------------------------------------------

    def look(
        self, envelope: Envelope, sealer: PublicKey, channel: str, policy: Policy | None
    ) -> KeyStatement:
        """What an envelope says about keys, if it may say it in a block that `sealer` seals; nothing is changed.

        `policy` is the one the block is made under, where its text is here: it may demand that people approve.
        """
        for finding in (rule_1_canonical_hash(envelope, Context()), rule_2_signature_scope(envelope)):
            if finding.status != "passed":
                raise SigInvalid(finding.detail)
        said = parse_key_statement(envelope)
        act = said.act
        if envelope.public_key != sealer:
            raise SigInvalid(
                f"signed with {envelope.public_key.did()}, and the block is sealed by {sealer.did()}"
            )
        if act.channel != channel:
            raise Unverified(f'it is of channel "{act.channel[:80]}"')
        if act.act == "rotate":
            self._look_at_rotation(said, envelope, sealer)
        else:
            validity = self.find(act.key)
            if validity is None and act.act != "revoke":
                raise Unverified(f"{act.key.hex()[:16]}… is no key of this channel")
            if validity is not None and validity.successor is None and not self._anybody:
                raise Unverified(f"{validity.key.did()} has not given way: rotate first, then {act.act}")
        if policy is not None:
            require_approvals(act.to_json(), said.approvals, policy.controls)
        return said

    def _look_at_rotation(self, said: KeyStatement, envelope: Envelope, sealer: PublicKey) -> None:
        act, new_key = said.act, said.act.new_key
        assert new_key is not None
        validity, known = self._validities.get(sealer), self._validities.get(new_key)
        if act.key != sealer.identity():
            raise Unverified(f"it rotates {act.key.hex()[:16]}…, which is not the key that seals it")
        if validity is not None and validity.successor is not None:
            raise Unverified(f"{sealer.did()} has given way to {validity.successor.did()} already")
        if new_key == sealer:
            raise Unverified("it rotates a key to itself")
        if new_key.identity() in self.revoked:
            raise Unverified(f"the new key {new_key.did()} was revoked")
        if known is not None and known.successor is not None:
            raise Unverified(f"the new key {new_key.did()} has given way before")
        if act.until_ns < act.since_ns:
            raise Unverified(
                f"the old key ends on {act.until}, before the new one counts on {act.since}: a gap"
            )
        if act.since_ns < envelope.timestamp_ns:
            raise Unverified(
                f"the new key would count since {act.since}, before this was said on {envelope.timestamp}"
            )
        said.check_acceptance()

    def _apply(self, act: KeyAct, height: int) -> None:
        old = self.find(act.key)
        if act.act == "revoke":
            self._revoke(act.key, KeyRevocation(height, act.since_ns, act.reason))
        elif act.new_key is None:
            self._end(old, height, act.since_ns)
        elif old is not None:
            self._end(replace(old, successor=act.new_key), height, act.until_ns)
            known = self._validities.pop(act.new_key, None)  # the newest stands last
            if known is None:
                known = KeyValidity(act.new_key, height, act.since_ns, named=old.named)
            elif not old.named:
                self._leads = True  # the word of a key that nobody named narrows nothing
            else:
                known = replace(
                    known, above=max(known.above, height), since_ns=max(known.since_ns, act.since_ns)
                )
            self._validities[act.new_key] = known
            self._current = None

    def _revoke(self, fingerprint: bytes, revoked: KeyRevocation) -> None:
        self.revoked.setdefault(fingerprint, []).append(revoked)
        self._end(self.find(fingerprint), revoked.above, revoked.since_ns)

    def _end(self, validity: KeyValidity | None, height: int, until_ns: int) -> None:
        self._free = self._current = None
        if validity is not None:
            self._validities[validity.key] = replace(validity, ends=(*validity.ends, (height, until_ns)))

    def _why(self, key: PublicKey) -> str:
        found = self.revoked.get(key.identity())
        if not found:
            return ""
        first = min(found, key=lambda each: each.since_ns)
        return f", revoked since {format_timestamp(first.since_ns)}{_reason(first)}"


def sorted_keys(keys: Iterable[PublicKey]) -> list[PublicKey]:
    """Keys in an order that is always the same."""
    return sorted(keys, key=lambda key: (key.alg, key.raw))


def _span(run: SigningRun) -> str:
    return f"block {run.first}" if run.first == run.last else f"blocks {run.first}–{run.last}"


def _reason(revoked: KeyRevocation) -> str:
    return f" ({revoked.reason[:80]})" if revoked.reason else ""
