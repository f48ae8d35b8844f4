"""Cases for the keys of a channel: what it says about them, and whose seal counts then.

Computed from the definitions: BLAKE3 and Ed25519 from their libraries, the canonical form written out.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from blake3 import blake3
from nacl.signing import SigningKey

Case = dict[str, Any]

FIRST, SECOND, THIRD, OTHER = (SigningKey(bytes([number]) * 32) for number in range(1, 5))
NOON_NS = 1_730_462_400 * 10**9
HOUR_NS = 3_600 * 10**9
SIGNED = [
    "protocol_version",
    "domain",
    "event_class",
    "event_type",
    "timestamp",
    "origin_identity",
    "payload_hash",
]


def canonical(value: Any) -> bytes:
    """JCS of what is here: names and texts of ASCII, whole numbers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def at(hours: int) -> str:
    return f"2024-11-01T{12 + hours:02d}:00:00Z"


def identity(key: SigningKey) -> dict[str, str]:
    return {"identity_type": "ed25519", "public_key": bytes(key.verify_key).hex()}


def fingerprint(key: SigningKey) -> str:
    return blake3(b"ea:identity:v1" + b"ed25519\0" + bytes(key.verify_key)).hexdigest()


def signature(key: SigningKey, tag: bytes, raw: bytes) -> dict[str, str]:
    return {"alg": "ed25519", "sig": base64.b64encode(key.sign(tag + raw).signature).decode()}


def rotate(
    old: SigningKey, new: SigningKey, since: int = 0, until: int = 0, **changes: Any
) -> dict[str, Any]:
    return {
        "version": 1,
        "act": "rotate",
        "channel": "ea.core",
        "key": fingerprint(old),
        "since": at(since),
        "until": at(until),
        "new_key": identity(new),
        "new_fingerprint": fingerprint(new),
        **changes,
    }


def end(act: str, key: SigningKey, since: int = 0) -> dict[str, Any]:
    return {
        "version": 1,
        "act": act,
        "channel": "ea.core",
        "key": fingerprint(key),
        "since": at(since),
        "reason": "",
    }


TYPES = {
    "rotate": "ledger.key_rotation",
    "retire": "ledger.key_retirement",
    "revoke": "ledger.key_revocation",
    "destroy": "ledger.key_destruction",
    "promote": "ledger.key_promotion",
    "policy": "ledger.policy_rotation",
    "evidence": "ledger.evidence_rotation",
}


def said(
    height: int,
    act: dict[str, Any],
    author: SigningKey,
    *,
    new: SigningKey | None = None,
    sealer: SigningKey | None = None,
    accepts: dict[str, Any] | None = None,
    basis: dict[str, Any] | None = None,
    approvals: tuple[Case, ...] = (),
    below: str = "00" * 32,
    policy_hash: str | None = None,
) -> Case:
    """The act in an envelope, alone in a block; `accepts` is what the new key signs, where that is something else."""
    payload = {**act, **(basis or {}), "approvals": list(approvals)}
    if new is not None:
        payload["acceptance"] = signature(new, b"ea:key-acceptance:v1", canonical(accepts or act))
    envelope: dict[str, Any] = {
        "protocol_version": "1.0.0",
        "domain": "ropewalk.keys",
        "event_class": "Alert",
        "event_type": TYPES[act["act"]],
        "timestamp": at(0),
        "origin_identity": identity(author),
        "payload_hash": blake3(canonical(payload)).hexdigest(),
        "payload": payload,
    }
    pairs = canonical([[name, envelope[name]] for name in SIGNED])
    envelope["signature"] = {**signature(author, b"ea:signature:v1", pairs), "signed_fields": SIGNED}
    root = blake3(b"ea:envelope:v1" + canonical(envelope)).hexdigest()
    return {"block": sealed(height, sealer or author, root, below, policy_hash), "envelope": envelope}


def sealed(
    height: int, key: SigningKey, root: str, below: str = "00" * 32, policy_hash: str | None = None
) -> Case:
    """The record of a block."""
    header = {
        "protocol_version": 1,
        "channel": "ea.core",
        "height": height,
        "prev_block_hash": below,
        "merkle_root": root,
        "timestamp": str(NOON_NS),
        "origin_identity": fingerprint(key),
        "integrity_proof": None,
        "policy_hash": policy_hash,
        "envelope_count": 1,
    }
    return {
        "header": header,
        "signature": signature(key, b"ea:block-signature:v1", canonical(header)),
        "signer": identity(key),
    }


def control(approvers: dict[str, SigningKey], acts: tuple[str, ...] = ("promote",), count: int = 2) -> Case:
    """A policy by which some people approve."""
    people = [{"name": name, **identity(key)} for name, key in approvers.items()]
    rule = {"id": "two", "name": "two", "version": 1, "kind": "control", "decision": "deny"}
    rule |= {"acts": list(acts), "approvals": count, "approvers": people}
    return {
        "version": 1,
        "name": "p",
        "evaluator_version": "ropewalk/1",
        "capability_matrix": {},
        "rules": [rule],
    }


def policy_hash_of(policy: Case) -> str:
    frozen = {name: policy[name] for name in ("rules", "evaluator_version", "capability_matrix")}
    return blake3(b"ea:policy:v1" + canonical(frozen)).hexdigest()


ANN, BEN, CID = (SigningKey(bytes([number]) * 32) for number in range(11, 14))
PEOPLE = {"ann": ANN, "ben": BEN, "cid": CID}


def promoted(
    place: int,
    old: SigningKey,
    new: SigningKey,
    *,
    epoch: int = 1,
    approvers: tuple[SigningKey, ...] = (ANN, BEN),
    policy: Case | None = None,
    held: Case | None = None,
    approved: Case | None = None,
    author: SigningKey | None = None,
    sealer: SigningKey | None = None,
    accepts: SigningKey | None = None,
    carried: Case | None = None,
    **changes: Any,
) -> Case:
    """A promotion on a block that `old` sealed under the policy `held`. The rest makes one that does not hold."""
    held = held or control(PEOPLE)
    below = sealed(place - 1, old, "11" * 32, "22" * 32, policy_hash_of(held))
    hash_ = blake3(b"ea:block:v1" + canonical(below["header"])).hexdigest()
    act = {
        **end("promote", old),
        "new_key": identity(new),
        "new_fingerprint": fingerprint(new),
        "epoch": epoch,
    }
    act |= {"height": place, "prev_block_hash": hash_, **changes}
    return said(
        place,
        act,
        author or new,
        new=accepts or new,
        sealer=sealer,
        basis={"below": carried or below, "policy": policy or held},
        approvals=approvals_of({**act, **(approved or {})}, approvers),
        below=hash_,
        policy_hash=policy_hash_of(held),
    )


def promotions() -> Case:
    once = promoted(5, FIRST, SECOND)
    yes, no = {"expect": True}, {"expect": False}

    def wrong(name: str, why: str, *keys: Case) -> Case:
        return case(name, why, list(keys), error="RopewalkError")

    def forged(name: str, why: str, **lies: Any) -> Case:
        return wrong(name, why, promoted(5, FIRST, SECOND, **lies))

    over = said(3, rotate(FIRST, THIRD, since=0, until=9), FIRST, new=THIRD)
    return {
        "name": "key_promotion",
        "why": "As key_line, with promotions: a statement that the new key seals itself, with the approvals of the "
        "policy that the block below names, and that block.",
        "cases": [
            case("new_key", "it seals from its own block on", [once], (5, 0, SECOND), **yes),
            case("new_key_below", "but not below", [once], (4, 0, SECOND), **no),
            case("old_key_below", "what was sealed stays valid", [once], (5, 0, FIRST), **yes),
            case("old_key_above", "the old writer is shut out", [once], (6, 0, FIRST), **no),
            case(
                "overlap_above",
                "so is a key in its overlap",
                [over, promoted(5, THIRD, SECOND)],
                (6, 0, FIRST),
                **no,
            ),
            case("again", "epoch 2", [once, promoted(8, SECOND, OTHER, epoch=2)], (9, 0, OTHER), **yes),
            case(
                "two_of_three",
                "any two",
                [promoted(5, FIRST, SECOND, approvers=(CID, BEN))],
                (6, 0, SECOND),
                **yes,
            ),
            forged("one_approval", "two are needed", approvers=(ANN,)),
            forged("approved_twice", "by one person", approvers=(ANN, ANN)),
            forged("approved_by_another", "whom the policy does not name", approvers=(ANN, OTHER)),
            forged("approved_epoch", "approved for another epoch", approved={"epoch": 2}),
            forged("approved_height", "approved for another height", approved={"height": 6}),
            forged("approved_key", "approved for another key", approved={"new_key": identity(OTHER)}),
            forged("epoch_skipped", "epoch 1 is next", epoch=2),
            forged("other_height", "not its own", height=6),
            forged("other_block", "not the block below", prev_block_hash="33" * 32),
            forged(
                "below_is_another_block",
                "of the same height and key, but not the one that it names",
                carried=sealed(4, FIRST, "44" * 32, "22" * 32, policy_hash_of(control(PEOPLE))),
            ),
            forged(
                "other_policy",
                "not that of the block below",
                policy=control({"x": OTHER, "y": THIRD}),
                approvers=(OTHER, THIRD),
            ),
            forged("no_rule", "the policy lets nobody promote", held=control(PEOPLE, ("rotate",))),
            forged("minority", "two of four are no majority", held=control({**PEOPLE, "dan": THIRD})),
            forged("not_accepted", "the new key signed nothing", accepts=OTHER),
            forged("signed_by_another", "not by the new key", author=OTHER, sealer=SECOND),
            forged("sealed_by_another", "not by the new key", sealer=OTHER),
            wrong("below_untrusted", "no valid key sealed the block below", promoted(5, OTHER, SECOND)),
            wrong("epoch_repeated", "epoch 2 is next", once, promoted(8, SECOND, OTHER, epoch=1)),
            wrong("after_it", "by a key that was shut out", once, promoted(8, FIRST, OTHER, epoch=2)),
            wrong("revoked", "to a key that was revoked", said(3, end("revoke", SECOND), FIRST), once),
        ],
    }


def approvals_of(act: Case, keys: tuple[SigningKey, ...]) -> tuple[Case, ...]:
    signed = canonical(act)
    return tuple(
        {"approver": identity(key), "signature": signature(key, b"ea:approval:v1", signed)} for key in keys
    )


def turned(
    height: int,
    old: Case | None,
    new: Case,
    *,
    approvers: tuple[SigningKey, ...] = (ANN, BEN),
    key: SigningKey = FIRST,
    carries: Case | None = None,
    held: str | None = None,
    approved: Case | None = None,
    sealer: SigningKey = FIRST,
    **changes: Any,
) -> Case:
    """A rotation of the policy in a block under `old`. The rest makes one that does not hold."""
    before = policy_hash_of(old) if old is not None else None
    act = {**end("policy", key), "policy_hash": before, "new_policy_hash": policy_hash_of(new), **changes}
    return said(
        height,
        act,
        sealer,
        basis={"policy": old, "new_policy": carries or new},
        approvals=approvals_of({**act, **(approved or {})}, approvers),
        policy_hash=held or before,
    )


def policies() -> Case:
    first, second, third = (control(PEOPLE, (act,)) for act in ("rotate", "retire", "destroy"))
    hashes = {name: policy_hash_of(each) for name, each in zip("abc", (first, second, third), strict=True)}
    once, yes, no = turned(5, first, second), {"expect": True}, {"expect": False}
    twice = [once, turned(7, second, third)]
    back = turned(6, second, first, since=at(2))
    gone = said(3, end("revoke", ANN), FIRST, policy_hash=hashes["a"])

    def at_block(
        name: str, why: str, keys: list[Case], height: int, has: str | None, pins: str | None, **expect: Any
    ) -> Case:
        block = {"height": height, "policy_hash": hashes[has] if has else None}
        given = {"named": [identity(FIRST)], "keys": keys, "block": block}
        return {
            "name": name,
            "why": why,
            "input": {**given, "pinned": hashes[pins] if pins else None},
            **expect,
        }

    def wrong(name: str, why: str, *keys: Case) -> Case:
        return at_block(name, why, list(keys), 9, "b", None, error="RopewalkError")

    def forged(name: str, why: str, **lies: Any) -> Case:
        return wrong(name, why, turned(5, first, second, **lies))

    return {
        "name": "policy_rotation",
        "why": "As key_line, with rotations of the policy. May a block of that height have that policy, if the trust "
        "file pins `pinned`? If a statement does not hold, that is an error.",
        "cases": [
            at_block("not_rotated", "the pinned one", [], 9, "a", "a", **yes),
            at_block("not_pinned", "any will do", [], 9, "b", None, **yes),
            at_block("another", "not the pinned one", [], 9, "b", "a", **no),
            at_block("its_own_block", "is made under the old one", [once], 5, "a", "a", **yes),
            at_block("new_in_its_own_block", "too early", [once], 5, "b", "a", **no),
            at_block("above", "has the new one", [once], 6, "b", "a", **yes),
            at_block("above_new_pinned", "also if that is pinned", [once], 6, "b", "b", **yes),
            at_block("old_above", "it has ended", [once], 6, "a", "a", **no),
            at_block("other_pinned", "not in this line", [once], 6, "b", "c", **no),
            at_block("twice", "the third", twice, 8, "c", "a", **yes),
            at_block("between", "the second", twice, 7, "b", "c", **yes),
            at_block(
                "first", "where there was none", [turned(5, None, first, approvers=())], 6, "a", "a", **yes
            ),
            forged("one_approval", "two are needed, though the rule names another act", approvers=(ANN,)),
            forged("approved_twice", "by one person", approvers=(ANN, ANN)),
            forged("approved_by_another", "whom the old policy does not name", approvers=(ANN, OTHER)),
            forged("approved_otherwise", "another policy", approved={"new_policy_hash": hashes["c"]}),
            forged("other_key", "not the key that sealed it", key=OTHER),
            forged("sealed_by_another", "a stranger's block", key=OTHER, sealer=OTHER),
            forged("other_policy", "not the one that the act names", carries=third),
            forged("other_block", "its block has another policy", held=hashes["c"]),
            forged("other_channel", "said in another channel", channel="ea.other"),
            at_block("back", "to an earlier policy, by a new act", [once, back], 7, "a", "a", **yes),
            at_block(
                "newer",
                "and again, by another",
                [once, back, turned(7, first, second, since=at(2))],
                8,
                "b",
                "a",
                **yes,
            ),
            wrong("repeated", "its approvals were used", once, back, turned(7, first, second)),
            wrong(
                "older", "approved before the last change", once, back, turned(7, first, third, since=at(1))
            ),
            wrong(
                "repeated_at_once", "the same act", once, turned(6, second, first), turned(7, first, second)
            ),
            wrong("approver_revoked", "ann's key does not count", gone, once),
            at_block(
                "others_approve",
                "the rest is enough",
                [gone, turned(5, first, second, approvers=(BEN, CID))],
                6,
                "b",
                "a",
                **yes,
            ),
            wrong("same", "to itself", turned(5, first, first)),
            wrong("minority", "a policy that is none", turned(5, first, control(PEOPLE, ("promote",), 1))),
        ],
    }


def case(
    name: str, why: str, keys: list[Case], block: tuple[int, int, SigningKey] | None = None, **outcome: Any
) -> Case:
    height, hours, signer = block or (9, 0, FIRST)
    asked = {"height": height, "timestamp": str(NOON_NS + hours * HOUR_NS), "signer": identity(signer)}
    given = {"named": [identity(FIRST)], "keys": keys, "block": asked}
    return {"name": name, "why": why, "input": given, **outcome}


def line() -> Case:
    overlap = rotate(FIRST, SECOND, since=1, until=3)
    over = said(5, overlap, FIRST, new=SECOND)
    once = said(5, rotate(FIRST, SECOND), FIRST, new=SECOND)
    twice = said(7, rotate(SECOND, THIRD), SECOND, new=THIRD)
    longer = rotate(FIRST, SECOND, since=1, until=9)
    other = {**once, "envelope": said(5, overlap, FIRST, new=SECOND)["envelope"]}
    yes, no = {"expect": True}, {"expect": False}

    def wrong(name: str, why: str, *keys: Case) -> Case:
        return case(name, why, list(keys), error="RopewalkError")

    return {
        "name": "key_line",
        "why": "What a channel says about its keys, each statement with the sealed block that holds it alone, the "
        "lowest first; `named` is what a trust file names. Does the seal of `signer` count for a block of that height "
        "and time? If a statement does not hold, that is an error.",
        "cases": [
            case("nothing_said", "a named key counts", [], (9, 0, FIRST), **yes),
            case("stranger", "no other does", [], (9, 0, OTHER), **no),
            case("new_key", "it followed", [once], (6, 0, SECOND), **yes),
            case("new_key_below", "but not below its rotation", [once], (5, 0, SECOND), **no),
            case("old_key_below", "what was sealed stands", [once], (5, 9, FIRST), **yes),
            case("old_key_above", "it has ended", [once], (6, 0, FIRST), **no),
            case("overlap_old", "it counts until its date", [over], (6, 2, FIRST), **yes),
            case("overlap_old_ended", "and not from then on", [over], (6, 3, FIRST), **no),
            case("overlap_new_early", "the new one waits for its date", [over], (6, 0, SECOND), **no),
            case("overlap_new", "and counts from then on", [over], (6, 1, SECOND), **yes),
            case("third", "a line of three", [once, twice], (8, 0, THIRD), **yes),
            case("second_ended", "which has ended too", [once, twice], (8, 0, SECOND), **no),
            case(
                "retired",
                "ends before the overlap",
                [over, said(6, end("retire", FIRST, 1), FIRST)],
                (7, 1, FIRST),
                **no,
            ),
            case(
                "revoked",
                "is not believed",
                [over, said(6, end("revoke", FIRST), FIRST)],
                (7, 0, FIRST),
                **no,
            ),
            case(
                "revoked_below",
                "what it sealed stands",
                [over, said(6, end("revoke", FIRST), FIRST)],
                (6, 0, FIRST),
                **yes,
            ),
            wrong("revoked_new", "to a key that was revoked", said(4, end("revoke", SECOND), FIRST), once),
            wrong(
                "signed_by_another",
                "not the key that seals",
                said(5, overlap, OTHER, new=SECOND, sealer=FIRST),
            ),
            wrong("sealed_by_another", "a stranger's block", said(5, overlap, OTHER, new=SECOND)),
            wrong("not_accepted", "the new key signed nothing", said(5, overlap, FIRST, new=OTHER)),
            wrong(
                "accepted_otherwise",
                "the new key accepted another date",
                said(5, longer, FIRST, new=SECOND, accepts=overlap),
            ),
            wrong("same_key", "to itself", said(5, rotate(FIRST, FIRST), FIRST, new=FIRST)),
            wrong(
                "gap",
                "nobody would count in between",
                said(5, rotate(FIRST, SECOND, 2, 1), FIRST, new=SECOND),
            ),
            wrong(
                "backdated",
                "valid before the statement that makes it so",
                said(5, rotate(FIRST, SECOND, since=-1, until=1), FIRST, new=SECOND),
            ),
            wrong(
                "twice", "a key gives way once", over, said(6, rotate(FIRST, THIRD, 0, 3), FIRST, new=THIRD)
            ),
            wrong("back", "to a key that gave way", once, said(7, rotate(SECOND, FIRST), SECOND, new=FIRST)),
            wrong(
                "other_channel",
                "said in another channel",
                said(5, rotate(FIRST, SECOND, channel="ea.other"), FIRST, new=SECOND),
            ),
            wrong(
                "other_fingerprint",
                "of another key",
                said(5, rotate(FIRST, SECOND, new_fingerprint="00" * 32), FIRST, new=SECOND),
            ),
            wrong("other_envelope", "not the one that its block holds", other),
            wrong(
                "approver_revoked",
                "a rotation that a revoked key approved, whatever the policy asks",
                said(3, end("revoke", ANN), FIRST),
                said(5, overlap, FIRST, new=SECOND, approvals=approvals_of(overlap, (ANN,))),
            ),
            wrong(
                "retire_current", "the key that seals gives way first", said(5, end("retire", FIRST), FIRST)
            ),
        ],
    }


def changed_evidence(
    height: int = 5,
    old: str | None = None,
    new: str = "aa" * 32,
    *,
    people: tuple[SigningKey, ...] = (),
    policy: Case | None = None,
    author: SigningKey = FIRST,
    sealer: SigningKey | None = None,
    **changes: Any,
) -> Case:
    act = {**end("evidence", FIRST), "evidence_hash": old, "new_evidence_hash": new}
    act |= {"roots": ["cc" * 32], "keys": [fingerprint(OTHER)], **changes}
    hash_ = None if policy is None else policy_hash_of(policy)
    signed = approvals_of(act, people)
    return said(height, act, author, sealer=sealer, approvals=signed, policy_hash=hash_)


def evidence() -> Case:
    first, second = changed_evidence(), changed_evidence(6, "aa" * 32, "bb" * 32)
    two, other = control(PEOPLE, ("evidence",)), control(PEOPLE, ("rotate",))

    def recorded(name: str, why: str, hash_: str | None, *keys: Case) -> Case:
        made = case(name, why, list(keys), expect=True)
        made["input"]["evidence_hash"] = hash_
        return made

    def wrong(name: str, why: str, *keys: Case) -> Case:
        return case(name, why, list(keys), error="RopewalkError")

    def under(policy: Case, *people: SigningKey, gone: SigningKey | None = None) -> list[Case]:
        """The channel gets that policy, perhaps revokes a key, then gets other evidence."""
        hash_ = policy_hash_of(policy)
        revoked = [] if gone is None else [said(4, end("revoke", gone), FIRST, policy_hash=hash_)]
        changed = changed_evidence(people=people, policy=policy)
        return [turned(3, None, policy, approvers=()), *revoked, changed]

    return {
        "name": "evidence_rotation",
        "why": "As key_line, with rotations of the trusted evidence: is `evidence_hash` the hash of the settings that "
        "the channel recorded last? If a statement does not hold, that is an error.",
        "cases": [
            recorded("none", "nothing was recorded", None),
            recorded("first", "the hash of its settings", "aa" * 32, first),
            recorded("second", "the last one counts", "bb" * 32, first, second),
            recorded(
                "first_replaces",
                "settings that were not recorded",
                "aa" * 32,
                changed_evidence(old="dd" * 32),
            ),
            recorded("approved", "by two", "aa" * 32, *under(two, ANN, CID)),
            recorded("not_controlled", "the rule is about another act", "aa" * 32, *under(other)),
            wrong("one_approval", "two are needed", *under(two, ANN)),
            wrong("one_person", "is not two", *under(two, ANN, ANN)),
            wrong("approved_by_another", "whom the policy does not name", *under(two, ANN, OTHER)),
            wrong(
                "not_chained",
                "not the settings recorded last",
                first,
                changed_evidence(6, "dd" * 32, "bb" * 32),
            ),
            wrong("forgotten", "there were settings", first, changed_evidence(6, None, "bb" * 32)),
            recorded(
                "back",
                "to earlier settings, by a new act",
                "aa" * 32,
                first,
                second,
                changed_evidence(7, "bb" * 32),
            ),
            wrong(
                "repeated",
                "the same act",
                first,
                second,
                changed_evidence(7, "bb" * 32),
                changed_evidence(8, "aa" * 32, "bb" * 32),
            ),
            wrong(
                "older",
                "than the last change",
                changed_evidence(since=at(2)),
                changed_evidence(6, "aa" * 32, "bb" * 32, since=at(1)),
            ),
            wrong("approver_revoked", "ann's key does not count", *under(two, ANN, CID, gone=ANN)),
            recorded("others_approve", "the rest is enough", "aa" * 32, *under(two, BEN, CID, gone=ANN)),
            wrong("same_settings", "by themselves", changed_evidence(old="aa" * 32)),
            wrong("other_key", "not about the key that seals", changed_evidence(key=fingerprint(OTHER))),
            wrong("other_channel", "said in another channel", changed_evidence(channel="ea.other")),
            wrong(
                "signed_by_another",
                "not by the key that seals",
                changed_evidence(author=OTHER, sealer=FIRST),
            ),
            wrong("sealed_by_another", "a stranger's block", changed_evidence(author=OTHER)),
            wrong("short_root", "64 hex digits each", changed_evidence(roots=["cc"])),
            wrong("roots_not_listed", "a list", changed_evidence(roots="cc" * 32)),
        ],
    }


def generate() -> dict[str, object]:
    return {
        "ledger_keys/line.json": line(),
        "ledger_keys/promotion.json": promotions(),
        "ledger_keys/policy.json": policies(),
        "ledger_keys/evidence.json": evidence(),
    }
