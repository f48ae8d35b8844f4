"""The eight rules of S4 §7, in its order, one function each.

Rules 1, 2, 4, 5 and 6 look at the envelope alone; 3, 7 and 8 also look into the channel (`EnvelopeHistory`).
A verdict lists all eight: passed, failed or not checked, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from ropewalk.errors import InvalidEnvelope, InvalidJson, InvalidProof, ProofRefused, RopewalkError
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import blake3, hash_from_hex
from ropewalk.ledger.block.index_keys import CLAIMING
from ropewalk.ledger.envelope import formats
from ropewalk.ledger.envelope.fields import FIELDS, MINIMUM_SIGNED, decode_base64
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.envelope.run import EnvelopeRun
from ropewalk.ledger.evidence.binding import check_binding
from ropewalk.ledger.rules.policy import Decision
from ropewalk.ledger.rules.policy_rules import ask_tag, tag_allows
from ropewalk.ledger.rules.verdict import PASSED, Context, EnvelopeHistory, Position, RuleFinding, Verdict

CHAIN_MAX: Final = 4096  # maximum ancestors of one envelope; each is looked up
_UNCHAINED: Final = RuleFinding(
    3, "failed", "a Result must append to the causality chain of its Command; it names no ancestor"
)
_ALONE: Final = RuleFinding(8, "not_checked", "no channel to look in")


def judge(envelope: Envelope, context: Context, signature: RuleFinding | None = None) -> Verdict:
    """Apply all eight rules and the policy to one envelope. `signature` is the finding of rule 2 if it is known."""
    findings = (
        rule_1_canonical_hash(envelope, context),
        signature or rule_2_signature_scope(envelope, context),
        rule_3_causality(envelope, context),
        rule_4_version_gate(envelope, context),
        rule_5_attestation_binding(envelope, context),
        rule_6_confidentiality(envelope, context),
        rule_7_integrity_proof(envelope, context),
        rule_8_replay_protection(envelope, context),
    )
    if context.policy is None:
        reason = None if context.sealed else ask_tag(envelope, None)
        return Verdict(envelope, findings, Decision(reason.decision, (reason,)) if reason else None)
    # Bound is not verified: without roots or keys to verify it, evidence is only the author's claim.
    status = findings[4].status if context.evidence is not None else "not_checked"
    return Verdict(envelope, findings, context.policy.decide(envelope, status, sealed=context.sealed))


ParallelMap = Callable[
    [Callable[[Sequence[Envelope]], list[RuleFinding]], Sequence[Envelope]], list[RuleFinding]
]
"""Maps a function over many envelopes, possibly in several threads; used to check signatures."""


def map_serially(
    act: Callable[[Sequence[Envelope]], list[RuleFinding]], envelopes: Sequence[Envelope]
) -> list[RuleFinding]:
    """Apply the function to all envelopes in this thread."""
    return act(envelopes)


def check_signatures(envelopes: Sequence[Envelope]) -> list[RuleFinding]:
    """Return the finding of rule 2 for each envelope.

    Run for many at once, before the other rules: signatures are checked without the interpreter lock, so only this
    part gains from threads. What a compiled loop does not find to hold is checked again, and named.
    """
    if isinstance(envelopes, EnvelopeRun):
        scopes = {id(fields): fields for fields in envelopes.fields()}.values()
        if all(_signature_fault(fields) is None for fields in scopes):
            sure = envelopes.surely_signed()
            return [
                PASSED[1] if holds else rule_2_signature_scope(envelopes[at]) for at, holds in enumerate(sure)
            ]
    return [rule_2_signature_scope(envelope) for envelope in envelopes]


def passes_by_template(envelope: Envelope, context: Context) -> bool:
    """Return whether all envelopes of a run with this one's template pass every rule but 2 and 8, whatever they say.

    The rules then depend on fields that they share: none has a chain, evidence, a tag or a proof. A policy may ask for
    more, and an Attestation is bound to its payload.
    """
    if context.policy is not None or not context.sealed or envelope.event_class == "Attestation":
        return False
    return all(rule(envelope, context) == PASSED[at] for at, rule in enumerate(RULES) if at not in (1, 7))


def rule_1_canonical_hash(envelope: Envelope, _context: Context) -> RuleFinding:
    """S4 §7.1: payload_hash must be the hash of the canonical payload."""
    if envelope.hash_holds:
        return PASSED[0]
    got = blake3(envelope.payload_raw).hex()
    if got == envelope.value["payload_hash"]:
        return PASSED[0]
    if envelope.is_detached:
        return RuleFinding(1, "not_checked", "the payload is detached")
    return RuleFinding(
        1, "failed", f"payload has hash {got}, the envelope claims {envelope.fields['payload_hash']}"
    )


def rule_2_signature_scope(envelope: Envelope, _context: Context | None = None) -> RuleFinding:
    """S4 §7.2: the signature must be valid over the listed fields, and the list must name the required ones."""
    fault = _signature_fault(envelope.fields)
    if fault is not None:
        return RuleFinding(2, "failed", fault)
    try:
        envelope.public_key.verify(envelope.preimage, envelope.signature_bytes)
    except RopewalkError as error:
        return RuleFinding(2, "failed", error.detail)
    return PASSED[1]


def _signature_fault(fields: dict[str, Any]) -> str | None:
    """Return what is wrong with a signature before its bytes are looked at."""
    signature, kind = fields["signature"], fields["origin_identity"]["identity_type"]
    fault = _scope_fault(tuple(signature["signed_fields"]), formats.FORMATS.names)
    if fault is None and kind not in (signature["alg"], "attested-domain"):
        return f"a {kind} identity cannot sign with {signature['alg']}"
    return fault


@lru_cache(maxsize=256)  # authors sign the same list again and again
def _scope_fault(names: tuple[str, ...], added: frozenset[str]) -> str | None:
    signed = set(names)
    if len(signed) != len(names):
        return "a field is listed twice"
    if not signed.issuperset(MINIMUM_SIGNED):
        return f"not signed: {', '.join(name for name in MINIMUM_SIGNED if name not in signed)}"
    if not signed <= _SIGNABLE | added:
        return f'"{min(signed - _SIGNABLE - added)[:40]}" cannot be signed'
    return None


def rule_3_causality(envelope: Envelope, context: Context) -> RuleFinding:
    """S4 §7.3, §3.2: the chain must end in the correlation id, ancestors come first, a Result answers a Command."""
    fields = envelope.fields
    correlation_id, chain = fields.get("correlation_id"), fields.get("causality_chain")
    kind = fields["event_class"]
    if correlation_id is None and kind in ("Command", "Result"):
        return RuleFinding(3, "failed", f"a {kind} must have a correlation id")
    if chain is not None:
        if not chain or chain[-1] != correlation_id:
            return RuleFinding(3, "failed", "the causality chain must end with the correlation id")
        if len(chain) > CHAIN_MAX:
            return RuleFinding(
                3, "failed", f"the causality chain must have at most {CHAIN_MAX} items, got {len(chain)}"
            )
        if len(set(chain)) != len(chain):
            return RuleFinding(3, "failed", "the causality chain names an envelope twice")
    history = context.history
    # Blocks that were sealed before this was required stay valid.
    unchained = kind == "Result" and not context.sealed and len(chain or ()) < 2
    if history is None:
        if unchained:
            return _UNCHAINED
        if kind == "Result" or (chain is not None and len(chain) > 1):
            return RuleFinding(3, "not_checked", "no channel to look up ancestors in")
        return PASSED[2]
    if kind == "Result" and history.claim("Command", correlation_id or "") is None:
        return RuleFinding(3, "failed", f'no Command with correlation id "{correlation_id}" in this channel')
    if unchained:
        return _UNCHAINED
    if chain is None or len(chain) == 1:
        return PASSED[2]
    return _check_ancestors(chain[:-1], history)


def _check_ancestors(ancestors: list[str], history: EnvelopeHistory) -> RuleFinding:
    unknown = 0
    before: Position | None = None
    for number, text in enumerate(ancestors):
        name = hash_from_hex(text)
        place = history.position(name) if name is not None else None
        if name is None or place is None:
            unknown += 1
            continue
        if before is not None and place <= before:
            return RuleFinding(3, "failed", f"ancestor {text} comes before its own ancestor")
        before = place
        chain = history.chain(name)
        if chain is not None and list(chain[:-1]) != ancestors[:number]:
            return RuleFinding(3, "failed", f"the chain differs from that of ancestor {text}")
    if unknown:
        return RuleFinding(
            3, "not_checked", f"{unknown} of {len(ancestors)} ancestors are not in this channel"
        )
    return PASSED[2]


def rule_4_version_gate(envelope: Envelope, context: Context) -> RuleFinding:
    """S4 §7.4: the version must be a supported one."""
    version = envelope.fields["protocol_version"]
    if version[: version.rindex(".")] in context.supported_minors:
        return PASSED[3]
    supported = ", ".join(f"{minor}.x" for minor in sorted(context.supported_minors))
    return RuleFinding(4, "failed", f"version {version[:40]} is not supported; supported: {supported}")


def rule_5_attestation_binding(envelope: Envelope, context: Context) -> RuleFinding:
    """S4 §7.5: evidence, if present, must be bound to this payload, and valid if the context can verify it."""
    if "attestation_evidence" not in envelope.fields and envelope.fields["event_class"] != "Attestation":
        return PASSED[4]
    status, detail = check_binding(envelope) if context.evidence is None else context.evidence(envelope)
    return RuleFinding(5, status, detail)


def rule_6_confidentiality(envelope: Envelope, context: Context) -> RuleFinding:
    """S4 §7.6: restricted envelopes need a policy that allows them."""
    if "confidentiality_tag" not in envelope.fields:
        return PASSED[5]
    if context.policy is None:
        if envelope.level == "restricted" and context.policy_hash is not None:
            return RuleFinding(6, "not_checked", "restricted; the policy that accepted it is not available")
        if envelope.level == "restricted":
            return RuleFinding(6, "failed", "restricted, and the channel has no policy that allows it")
        return PASSED[5]
    decision = context.policy.decide_level(envelope)
    if decision.outcome == "deny":
        return RuleFinding(6, "failed", decision.explain())
    return PASSED[5]


def rule_7_integrity_proof(envelope: Envelope, context: Context) -> RuleFinding:
    """S4 §7.7: a Merkle proof must lead from a leaf to a root in this channel."""
    proof = envelope.fields.get("integrity_proof")
    if proof is None:
        return PASSED[6]
    if proof["type"] != "merkle":
        return RuleFinding(7, "not_checked", f"{proof['type']} proofs are not checked")
    try:
        root, size = _check_merkle(proof["proof"])
    except (InvalidEnvelope, InvalidJson, InvalidProof, ProofRefused) as error:
        return RuleFinding(7, "failed", error.detail)
    if root == envelope.payload_hash:
        return PASSED[6]
    if context.history is None:
        return RuleFinding(7, "not_checked", "the path holds; no channel to look up its root in")
    leaves = context.history.leaves(root)
    if leaves is None:
        return RuleFinding(7, "failed", f"no earlier block of this channel has the root {root.hex()}")
    if leaves != size:
        return RuleFinding(
            7, "failed", f"the block with that root has {leaves} envelopes, the proof claims {size}"
        )
    return PASSED[6]


def rule_8_replay_protection(envelope: Envelope, context: Context) -> RuleFinding:
    """S4 §7.8: a Command or Result is accepted once; an Alert again only if the channel's policy allows it."""
    history = context.history
    if history is None:
        return _ALONE
    kind, correlation_id = envelope.fields["event_class"], envelope.fields.get("correlation_id")
    if correlation_id is not None and kind in CLAIMING:
        place = history.claim(kind, correlation_id)
        if place is not None and not _may_repeat(envelope, context):
            return RuleFinding(
                8, "failed", f'{kind} "{correlation_id}" is already at height {place[0]}, index {place[1]}'
            )
    place = history.intent(envelope.intent)
    if place is not None:
        return RuleFinding(
            8,
            "failed",
            f"the same statement with another signature is already at height {place[0]}, index {place[1]}",
        )
    return PASSED[7]


def _may_repeat(envelope: Envelope, context: Context) -> bool:
    """Return whether an envelope with a used correlation id is an Alert that may be repeated.

    The author controls the tag, so at ingest the channel's own policy must agree.
    """
    if context.sealed:
        return tag_allows(envelope)
    return context.policy is not None and context.policy.may_repeat(envelope)


RULES: Final[tuple[Callable[[Envelope, Context], RuleFinding], ...]] = (
    rule_1_canonical_hash,
    rule_2_signature_scope,
    rule_3_causality,
    rule_4_version_gate,
    rule_5_attestation_binding,
    rule_6_confidentiality,
    rule_7_integrity_proof,
    rule_8_replay_protection,
)

_SIGNABLE: Final = frozenset(FIELDS) - {"signature"}


def _check_merkle(text: str) -> tuple[bytes, int]:
    """Return the root a Merkle proof leads to, and the size it claims.

    It is the base64 of canonical `{"leaf","index","size","path","root"}`.
    """
    value = jcs.parse_canonical(decode_base64(text, "/integrity_proof/proof"))
    if not isinstance(value, dict) or value.keys() != {"leaf", "index", "size", "path", "root"}:
        raise InvalidProof("an integrity proof must have leaf, index, size, path and root")
    index, size, path = value["index"], value["size"], value["path"]
    if not isinstance(path, list) or type(index) is not int or type(size) is not int:
        raise InvalidProof("index and size must be integers, path a list")
    leaf, root, *siblings = (_hash(text) for text in (value["leaf"], value["root"], *path))
    merkle.verify_inclusion(leaf, index, size, siblings, root)
    return root, size


def _hash(text: Any) -> bytes:
    raw = hash_from_hex(text)
    if raw is None:
        raise InvalidProof("hashes must be 64 lowercase hex digits")
    return raw
