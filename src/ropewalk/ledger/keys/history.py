"""The keys of a channel over time: whose signature is valid at which height and time (S4 §13).

A verifier names keys in its trust file. Key statements in the channel (`statements`) change which signatures are valid
*above* their block, never below, so nothing that was sealed becomes invalid:

- a rotation makes the new key valid since its date, and the old one until its end; each key is replaced once

- a promotion makes the new key valid from its own block on, in the next epoch, and ends all others

- a retirement, destruction or revocation ends a key that was replaced

- signatures of a revoked key since the revocation's date are rejected in later blocks; earlier blocks stay valid

A trust file may limit and revoke keys too; then the dates apply at every height.

If the trust file names only a later key, earlier blocks cannot be checked with it: they are *not checked* if a
rotation leads from their key to a named one, and rejected otherwise.
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
from ropewalk.ledger.keys.policies import PolicyHistory, check_policy_rotation
from ropewalk.ledger.keys.promotion import block_below, is_promotion
from ropewalk.ledger.keys.statement_check import check_statement
from ropewalk.ledger.keys.statements import KeyAct, maybe_key_statement, parse_key_statement
from ropewalk.ledger.keys.validity import KeyRevocation, KeyValidity, SigningRun, reason_text

if TYPE_CHECKING:
    from ropewalk.ledger.proof.trust import Trust
    from ropewalk.ledger.rules.policy import Policy

PROOFS_MAX: Final = 4_096  # a key a day for ten years
_FOREVER: Final = -1  # the height above which a trust file's dates hold


@dataclass(frozen=True, slots=True)
class KeyProof:
    """A key statement with the sealed block that holds only it: the block's root is the envelope's id."""

    record: BlockRecord
    envelope: Envelope

    @classmethod
    def of(cls, block: Block) -> KeyProof | None:
        """Return the proof made of a block, if it holds a key statement only."""
        if len(block.envelopes) != 1 or not maybe_key_statement(block.envelopes[0]):
            return None
        return cls(block.record, parse_stored(block.envelopes[0]))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in bundles, proofs and archives."""
        return {"block": jcs.parse(self.record.raw), "envelope": self.envelope.value}


def parse_key_proofs(value: Any) -> tuple[KeyProof, ...]:
    """Parse proofs from a JSON list, lowest height first; only the form is checked.

    >>> parse_key_proofs([{}])
    Traceback (most recent call last):
    ropewalk.errors.Invalid: keys: each item must have block and envelope
    """
    if not isinstance(value, list) or not 1 <= len(value) <= PROOFS_MAX:
        raise Invalid(f"keys must be a list of 1 to {PROOFS_MAX} statements, or absent")
    found: list[KeyProof] = []
    for each in value:
        if not isinstance(each, dict) or each.keys() != {"block", "envelope"}:
            raise Invalid("keys: each item must have block and envelope")
        record = parse_record(jcs.encode(each["block"]))
        if found and record.height <= found[-1].record.height:
            raise Invalid("keys must be sorted by height without duplicates")
        found.append(KeyProof(record, parse_stored(jcs.encode(each["envelope"]))))
    return tuple(found)


class KeyHistory:
    """Which signing keys are valid, for the blocks read so far; pass every block in order, or proofs first.

    `lenient`: the first block may be signed by an unnamed key, if a rotation leads from it to a named one.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> from ropewalk.ledger.proof.trust import Trust
    >>> key = SigningKey.generate("ed25519", bytes(32)).public
    >>> KeyHistory(Trust((key,), ())).current.key == key
    True
    """

    def __init__(self, trust: Trust | None, *, policy: Policy | None = None, lenient: bool = False) -> None:
        self.anybody, self._lenient = trust is None, lenient
        self.channel: str | None = None  # if known, the one whose blocks are read: one key may seal several
        self.policies = PolicyHistory(policy)
        self.evidence: bytes | None = None  # the hash of the evidence settings that the channel recorded last
        self.changes: list[KeyAct] = []  # of policy and evidence settings
        self._validities: dict[PublicKey, KeyValidity] = {}
        self._statements: dict[int, bytes] = {}
        self._begun = self._leads = self._vouched = False
        self._unnamed: list[int] = []  # first and last height signed by an unnamed key
        self._unnamed_key: PublicKey | None = None
        self.revoked: dict[bytes, list[KeyRevocation]] = {}
        self.runs: list[SigningRun] = []
        self._free: PublicKey | None = None
        self._current: KeyValidity | None = None
        self.complete = False  # every key statement of the channel is known: reject a block with another one
        self.epoch = 0  # promotions so far
        self.stand = 0  # envelopes of revoked keys, signed before the revocation
        if trust is None:
            return
        for key in trust.block_signers:
            since_ns, until_ns = trust.limits.get(key, (0, None))
            ends = ((_FOREVER, until_ns),) if until_ns is not None else ()
            self._validities[key] = KeyValidity(key, since_ns=since_ns, ends=ends)
        for each in trust.revocations:
            self._revoke(each.key, KeyRevocation(_FOREVER, each.since_ns, each.reason))

    # --- keys -------------------------------------------------------------------------------------------------------

    @property
    def validities(self) -> tuple[KeyValidity, ...]:
        """Every named or discovered key, in that order."""
        return tuple(self._validities.values())

    @property
    def current(self) -> KeyValidity:
        """The newest key: the last that was not replaced."""
        if self._current is None:  # read for every block
            self._current = next(
                validity for validity in reversed(self._validities.values()) if validity.successor is None
            )
        return self._current

    @property
    def heights(self) -> tuple[int, ...]:
        """Heights of the key statements read so far."""
        return tuple(self._statements)

    def validity(self, key: PublicKey) -> KeyValidity | None:
        return self._validities.get(key)

    def find(self, fingerprint: bytes) -> KeyValidity | None:
        return next(
            (validity for key, validity in self._validities.items() if key.identity() == fingerprint), None
        )

    def descends(self, key: PublicKey, named: Iterable[PublicKey]) -> bool:
        """Return whether a key is one of `named`, or proven to be a successor of one."""
        known = set(named)
        for each in tuple(known):
            validity = self._validities.get(each)
            while validity is not None and validity.successor is not None and validity.successor not in known:
                known.add(validity.successor)
                validity = self._validities.get(validity.successor)
        return key in known

    def check_unended(self, key: PublicKey, height: int, at_ns: int) -> None:
        """Raise if the key that signs a range of blocks ended before the last of them, of that height and time."""
        validity = self._validities.get(key)
        if validity is not None and validity.has_ended(height, at_ns):
            raise SigInvalid(
                f"{key.did()} {validity.explain()}{self._why(key)}; block {height} is of {format_timestamp(at_ns)}",
                advice="The newest key of the channel can sign it.",
            )

    # --- blocks -----------------------------------------------------------------------------------------------------

    def check(self, record: BlockRecord, proof: KeyProof | None = None) -> None:
        """Raise unless the signature is valid and its key is valid at that height and time.

        `proof` is the key statement of the block, if it has one: a promotion is sealed by the key that it makes valid.
        """
        if proof is not None and is_promotion(proof.envelope) and record.height not in self._statements:
            below = block_below(parse_key_statement(proof.envelope))
            self._judge(below.signer, below.height, below.header.timestamp_ns)
            self.learn(proof)
        self.admit(record)
        check_signature(record)

    def admit(self, record: BlockRecord) -> None:
        """Raise unless the signer's key is valid at that height and time; the signature itself is not checked."""
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
        if not self.anybody:
            validity = self._validities.get(signer)
            if validity is None:
                if self._begun or not self._lenient:
                    raise SigInvalid(f"block {height}: signer {signer.did()} is not trusted", height=height)
                validity = self._validities[signer] = KeyValidity(signer, named=False)
                self._current = None
            elif not validity.is_valid(height, at_ns):
                sealed, why = format_timestamp(at_ns), self._why(signer)
                raise SigInvalid(
                    f"block {height}: signed on {sealed} by {signer.did()}, which {validity.explain()}{why}",
                    height=height,
                )
            if validity.named:
                self._vouched = self._vouched or self._leads
                # No limits apply: most channels have one key and thousands of blocks.
                self._free = signer if validity == KeyValidity(signer) else None
            else:
                self._unnamed = [*self._unnamed[:1], height]
                self._unnamed_key = self._unnamed_key or signer
        self._begun = True

    def take(self, block: Block) -> bool:
        """Apply the key statement of a checked block; return whether it has one."""
        if len(block.envelopes) != 1 or (proof := KeyProof.of(block)) is None:
            return False
        self.learn(proof)
        return True

    def learn(self, proof: KeyProof) -> None:
        """Apply a key statement whose block was checked; raise if it is invalid."""
        record, known = proof.record, self._statements.get(proof.record.height)
        if known == record.hash:
            return
        try:
            if known is not None:
                raise Unverified("two blocks of that height have key statements")
            if proof.envelope.id != record.header.merkle_root or record.header.envelope_count != 1:
                raise Unverified("its envelope must be the only one of its block")
            policy = self.policies.find(record.header.policy_hash)
            said = check_statement(self, proof.envelope, record.signer, record.header.channel, policy, record)
        except RopewalkError as error:
            raise Unverified(
                f"block {record.height}: invalid key statement: {error.detail}", height=record.height
            ) from error
        if said.act.act in ("policy", "evidence"):
            sealer = self._validities.get(record.signer)
            if sealer is not None and not sealer.named:
                return  # a statement of an unnamed key must not change which policy a trust file pins
            if said.act.act == "policy":
                self.policies.rotated(record.height, said.act.old_hash, check_policy_rotation(said, record))
            else:
                self.evidence = said.act.new_hash
            self.changes.append(said.act)
        else:
            self._apply(said.act, record.height)
        self._statements[record.height] = record.hash

    def follow(self, proofs: Iterable[KeyProof]) -> None:
        """Apply key proofs from outside the range that is checked."""
        for each in proofs:
            before, self.runs = self.runs, []
            unnamed, first = self._unnamed, self._unnamed_key
            self.check(each.record, each)
            self.learn(each)
            self.runs, self._unnamed, self._unnamed_key = before, unnamed, first

    def check_author(self, envelope: Envelope, height: int, at_ns: int) -> None:
        """Raise if the author's key was revoked before a block of that height and time."""
        for each in self.revoked.get(envelope.public_key.identity(), ()):
            if height > each.above and at_ns >= each.since_ns:
                raise SigInvalid(
                    f"signed with {envelope.public_key.did()}, revoked since {format_timestamp(each.since_ns)}"
                    f"{reason_text(each)}",
                    advice="Sign it again with another key; `ropewalk ledger key ls` lists those that are revoked.",
                )
            self.stand += 1

    # --- results ----------------------------------------------------------------------------------------------------

    @property
    def stranger(self) -> tuple[int, PublicKey] | None:
        """The first block signed by an unnamed key, and that key, unless it leads to a named one."""
        if not self._unnamed or self._vouched or self._unnamed_key is None:
            return None
        return self._unnamed[0], self._unnamed_key

    @property
    def leads(self) -> bool:
        """Whether a rotation leads from the unnamed key to a named one."""
        return self._leads

    @property
    def unjudged(self) -> str:
        """Which blocks cannot be checked because only a later key is named; empty if all can."""
        if not self._unnamed or self._unnamed_key is None:
            return ""
        first, last = self._unnamed[0], self._unnamed[-1]
        return (
            f"blocks {first}–{last} are signed by {self._unnamed_key.did()} or its successor, and the trust "
            "file names only a later one: whether that key was valid then cannot be checked"
        )

    def summary(self) -> str:
        """Return who signed what, if there were several keys or a revoked one; else empty."""
        words = []
        if len(self.runs) > 1:
            shown = [f"{_span(run)} by {run.key.did()}" for run in self.runs[:4]]
            rest = f", and {len(self.runs) - 4} more" if len(self.runs) > 4 else ""
            words.append(f"{', '.join(shown)}{rest}, each while it was valid")
        revoked = {run.key for run in self.runs if run.key.identity() in self.revoked}
        words += [
            f"{key.did()} was revoked later: its earlier blocks stay valid"
            for key in sorted(revoked, key=lambda key: (key.alg, key.raw))
        ]
        if self.stand:
            words.append(f"{self.stand} envelopes of keys that were revoked later stay valid")
        return "; ".join(words)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _apply(self, act: KeyAct, height: int) -> None:
        old = self.find(act.key)
        self.epoch = act.epoch or self.epoch
        if act.act == "revoke":
            self._revoke(act.key, KeyRevocation(height, act.since_ns, act.reason))
        elif act.new_key is None:
            self._end(old, height, act.since_ns)
        elif old is not None:
            above = height
            if act.act == "promote":
                above = height - 1
                for other in self.validities:
                    if other.key not in (old.key, act.new_key) and (old.named or not other.named):
                        self._end(
                            replace(other, successor=other.successor or act.new_key), height, act.since_ns
                        )
            self._end(replace(old, successor=act.new_key), height, act.until_ns)
            known = self._validities.pop(act.new_key, None)  # the newest comes last
            if known is None:
                known = KeyValidity(act.new_key, above, act.since_ns, named=old.named)
            elif not old.named:
                self._leads = True  # a statement of an unnamed key must not limit a named one
            else:
                known = replace(
                    known, above=max(known.above, above), since_ns=max(known.since_ns, act.since_ns)
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
        return f", revoked since {format_timestamp(first.since_ns)}{reason_text(first)}"


def _span(run: SigningRun) -> str:
    return f"block {run.first}" if run.first == run.last else f"blocks {run.first}–{run.last}"
