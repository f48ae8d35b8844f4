"""Cases for the eight rules of S4 §7: one file a rule, accepted and refused cases named after the defect.

Keys are fixed, so the files come out the same every time. A case gives an `envelope` (or `raw` text where the bytes
matter), what the channel holds before it (`history`, `roots` of its blocks), and a `policy`; it expects the status of
the rule, or the code of the refusal where the envelope is not even well formed.
"""

from __future__ import annotations

import copy
import hashlib
import json
from base64 import b64encode
from typing import Any

from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import blake3
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.fields import DEFAULT_SIGNED, MINIMUM_SIGNED, STRICT_SIGNED
from ropewalk.ledger.envelope.model import Envelope, payload_hash, signature_preimage
from ropewalk.ledger.evidence.binding import report_data
from ropewalk.ledger.rules.policy import STRICT

Value = dict[str, Any]

ADA = SigningKey.generate("ed25519", b"ada" + bytes(29))
P256 = SigningKey.generate("p256", b"p256" + bytes(28))
SECP = SigningKey.generate("secp256k1", b"secp" + bytes(28))
NOON = "2024-11-01T12:00:00Z"
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
STRICT_VALUE = json.loads(STRICT.to_bytes())


def generate() -> dict[str, object]:
    """Every file of the rules."""
    rules = (_hash, _signature, _causality, _version, _evidence, _level, _proof, _replay)
    files: dict[str, object] = {}
    for number, make in enumerate(rules, 1):
        name, why, cases = make()
        files[f"ledger_rules/{number}_{name}.json"] = {"name": name, "why": why, "cases": cases}
    return files


def _said(number: int = 0, key: SigningKey = ADA, **members: Any) -> Envelope:
    options: Value = {
        "domain": "ea.core",
        "event_class": "Observation",
        "event_type": "test.seen",
        "payload": {"n": number},
        "timestamp": NOON,
        **members,
    }
    return build(key, **options)


def _signed(value: Value, key: SigningKey = ADA, fields: Any = None) -> Value:
    """The value signed anew, over other fields where they are given."""
    value = copy.deepcopy(value)
    value["signature"] = {
        "alg": key.alg,
        "sig": "",
        "signed_fields": list(fields if fields is not None else value["signature"]["signed_fields"]),
    }
    value["signature"]["sig"] = b64encode(key.sign(signature_preimage(value))).decode()
    return value


def _with(envelope: Envelope, **members: Any) -> Value:
    """The envelope's value with other members, not signed anew."""
    return {**copy.deepcopy(envelope.value), **members}


def _case(name: str, envelope: Any, rule: int, status: str, **more: Any) -> Value:
    value = envelope.value if isinstance(envelope, Envelope) else envelope
    given: Value = {"raw": value} if isinstance(value, str) else {"envelope": value}
    verdict = {"rule": rule, "status": status}
    return {"name": name, "input": {**given, **more}, "error" if status == "failed" else "expect": verdict}


def _malformed(name: str, envelope: Any, code: str, **more: Any) -> Value:
    given: Value = {"raw": envelope} if isinstance(envelope, str) else {"envelope": envelope}
    return {"name": name, "input": {**given, **more}, "error": {"code": code}}


def _hash() -> tuple[str, str, list[Value]]:
    one = _said(payload={"b": [1, 2, {"z": None}], "a": "é"})
    text = json.dumps(one.value, ensure_ascii=True, indent=2)
    in_base64 = b64encode(bytes.fromhex(one.value["payload_hash"])).decode()
    spaced = blake3(b'{"n": 0}').hex()
    detached = {"locator": "https://example.org/body", "bytes": 7}
    return (
        "canonical_hash",
        "payload_hash is BLAKE3 over the canonical payload, whatever layout the payload came in.",
        [
            _case("payload_matches", one, 1, "passed"),
            _case("other_layout_same_payload", text, 1, "passed"),
            _case("null_payload", _said(payload=None), 1, "passed"),
            _case("integral_float_is_the_integer", text.replace("2,", "2.0,", 1), 1, "passed"),
            _case("payload_is_detached", _said(detached=detached), 1, "not_checked"),
            _case("payload_changed", _with(one, payload={"a": "e"}), 1, "failed"),
            _case("hash_changed", _with(one, payload_hash="0" * 64), 1, "failed"),
            _case("hash_over_other_layout", _with(_said(), payload_hash=spaced), 1, "failed"),
            _case(
                "hash_is_sha256",
                _with(_said(), payload_hash=hashlib.sha256(b'{"n":0}').hexdigest()),
                1,
                "failed",
            ),
            _case(
                "detached_but_also_present", _with(_said(detached=detached), payload={"n": 1}), 1, "failed"
            ),
            _case("hash_of_other_payload_in_upper_case", _with(one, payload_hash="AB" * 32), 1, "failed"),
            _case(
                "hash_in_upper_case", _with(one, payload_hash=one.value["payload_hash"].upper()), 1, "passed"
            ),
            _case("hash_in_base64", _with(one, payload_hash=in_base64), 1, "passed"),
            _malformed("hash_in_loose_base64", _with(one, payload_hash=in_base64[:-1]), "InvalidEnvelope"),
            _malformed("hash_with_prefix", _with(one, payload_hash="blake3:" + "0" * 64), "InvalidEnvelope"),
            _malformed("duplicate_key", text.replace("{", '{"domain":"x",', 1), "InvalidJson"),
            _malformed("integer_beyond_2_53", text.replace("2,", "9007199254740993,", 1), "InvalidJson"),
        ],
    )


def _signature() -> tuple[str, str, list[Value]]:
    one = _said(1, signed_fields=DEFAULT_SIGNED)
    base64_key = _with(
        one, origin_identity={"identity_type": "ed25519", "public_key": b64encode(ADA.public.raw).decode()}
    )
    attested = _with(
        one, origin_identity={"identity_type": "attested-domain", "public_key": ADA.public.raw.hex()}
    )
    short = [name for name in DEFAULT_SIGNED if name != "payload_hash"]
    cut_after = _with(one, signature={**one.value["signature"], "signed_fields": list(DEFAULT_SIGNED[:-1])})
    swapped = [DEFAULT_SIGNED[1], DEFAULT_SIGNED[0], *DEFAULT_SIGNED[2:]]
    reordered = _with(one, signature={**one.value["signature"], "signed_fields": swapped})
    p256 = _said(2, P256)
    raw = p256.signature_bytes
    high = raw[:32] + (P256_ORDER - int.from_bytes(raw[32:], "big")).to_bytes(32, "big")
    high_s = _with(p256, signature={**p256.value["signature"], "sig": b64encode(high).decode()})
    small_order = _with(one, origin_identity={"identity_type": "ed25519", "public_key": "01" + "00" * 31})
    sig = one.value["signature"]["sig"]
    stray = sig[:-3] + chr(ord(sig[-3]) + 1) + "=="
    cases = [
        _case("default_fields", one, 2, "passed"),
        _case("strict_fields", _said(1, signed_fields=STRICT_SIGNED), 2, "passed"),
        _case("minimum_fields", _said(1, signed_fields=MINIMUM_SIGNED), 2, "passed"),
        _case("p256", p256, 2, "passed"),
        _case("secp256k1", _said(2, SECP), 2, "passed"),
        _case("key_in_base64", _signed(base64_key), 2, "passed"),
        _case("attested_domain_uses_alg_of_signature", _signed(attested), 2, "passed"),
        _malformed("signature_over_nothing", _signed(one.value, fields=[]), "InvalidEnvelope"),
        _case("list_without_payload_hash", _signed(one.value, fields=short), 2, "failed"),
        _case("list_shortened_after_signing", cut_after, 2, "failed"),
        _case("list_reordered_after_signing", reordered, 2, "failed"),
        _case("field_listed_twice", _signed(one.value, fields=[*DEFAULT_SIGNED, "domain"]), 2, "failed"),
        _case(
            "signature_signs_itself", _signed(one.value, fields=[*DEFAULT_SIGNED, "signature"]), 2, "failed"
        ),
        _case("unknown_field_listed", _signed(one.value, fields=[*DEFAULT_SIGNED, "extra"]), 2, "failed"),
        _case("high_s", high_s, 2, "failed"),
        _case("other_key", _with(one, origin_identity=P256.public.to_json() | {}), 2, "failed"),
        _case("algorithm_of_another_kind", _signed(one.value, P256), 2, "failed"),
        _malformed("small_order_key", small_order, "InvalidEnvelope"),
        _malformed(
            "base64_with_stray_bits",
            _with(one, signature={**one.value["signature"], "sig": stray}),
            "InvalidEnvelope",
        ),
        _malformed(
            "signature_cut_short",
            _with(one, signature={**one.value["signature"], "sig": b64encode(bytes(63)).decode()}),
            "InvalidEnvelope",
        ),
    ]
    changes = {
        "protocol_version": "1.0.1",
        "domain": "ea.other",
        "event_class": "Alert",
        "event_type": "test.other",
        "timestamp": "2024-11-01T12:00:01Z",
        "payload_hash": "0" * 64,
        "correlation_id": "c-9",
        "confidentiality_tag": {"level": "public"},
        "policy_tag": {"policy_hash": "x", "decision": "allow"},
        "integrity_proof": {"type": "snark", "proof": "AA=="},
    }
    cases += [
        _case(f"{name}_changed_after_signing", _with(one, **{name: value}), 2, "failed")
        for name, value in changes.items()
    ]
    return (
        "signature_scope",
        "The signature authenticates the listed fields and the list, and the list is long enough.",
        cases,
    )


def _causality() -> tuple[str, str, list[Value]]:
    ask = _said(event_class="Command", event_type="test.do", correlation_id="c-1")
    step = _said(1, parent=ask)
    leaf = _said(2, parent=step)
    done = _said(3, event_class="Result", event_type="test.done", parent=ask)
    history = [ask.value, step.value]

    def chained(*chain: str, base: Envelope = leaf) -> Value:
        return _signed(_with(base, causality_chain=list(chain)))

    bare = _signed({k: v for k, v in ask.value.items() if k not in ("correlation_id", "causality_chain")})
    lost = _signed({k: v for k, v in leaf.value.items() if k != "correlation_id"})
    return (
        "causality",
        "A chain ends in the correlation id and names earlier envelopes in their order; a Result answers a Command.",
        [
            _case("seed", ask, 3, "passed"),
            _case("no_chain_at_all", _said(9), 3, "passed"),
            _case("child", step, 3, "passed", history=[ask.value]),
            _case("grandchild", leaf, 3, "passed", history=history),
            _case("result_after_its_command", done, 3, "passed", history=history),
            _case("ancestor_not_in_the_channel", step, 3, "not_checked", history=[]),
            _case("result_without_its_command", done, 3, "failed", history=[]),
            _case(
                "result_without_chain",
                _signed({k: v for k, v in done.value.items() if k != "causality_chain"}),
                3,
                "failed",
                history=history,
            ),
            _case("result_with_the_seed_alone", chained("c-1", base=done), 3, "failed", history=history),
            _case(
                "tail_is_not_the_correlation_id",
                chained(ask.hex_id, step.hex_id),
                3,
                "failed",
                history=history,
            ),
            _case("tail_is_another_id", chained(ask.hex_id, "c-2"), 3, "failed", history=history),
            _case("chain_without_correlation_id", lost, 3, "failed", history=history),
            _case("empty_chain", chained(), 3, "failed", history=history),
            _case("command_without_correlation_id", bare, 3, "failed"),
            _case("cycle", chained(ask.hex_id, step.hex_id, ask.hex_id, "c-1"), 3, "failed", history=history),
            _case("ancestors_swapped", chained(step.hex_id, ask.hex_id, "c-1"), 3, "failed", history=history),
        ],
    )


def _version() -> tuple[str, str, list[Value]]:
    def at(version: str) -> Value:
        return _said(protocol_version=version).value

    return (
        "version_gate",
        "Versions 1.0.x and 1.1.x are supported; others need an adapter.",
        [
            *(
                _case(f"supported_{v.replace('.', '_')}", at(v), 4, "passed")
                for v in ("1.0.0", "1.0.17", "1.1.0")
            ),
            *(
                _case(f"unknown_{v.replace('.', '_')}", at(v), 4, "failed")
                for v in ("0.9.0", "1.2.0", "2.0.0", "10.1.0", "1.01.0")
            ),
            _malformed("two_numbers", _signed(_with(_said(), protocol_version="1.0")), "InvalidEnvelope"),
            _malformed(
                "newline_after", _signed(_with(_said(), protocol_version="1.0.0\n")), "InvalidEnvelope"
            ),
            _malformed("unknown_class", _signed(_with(_said(), event_class="Rumour")), "InvalidEnvelope"),
        ],
    )


def _evidence() -> tuple[str, str, list[Value]]:
    payload: Value = {"image": "sha256:00"}
    digest = payload_hash(payload)

    def evidence(kind: str, report: Any, **more: Any) -> Value:
        return {"format": kind, "evidence_hash": blake3(jcs.encode(report)).hex(), "report": report, **more}

    def attested(proof: Value | None, **members: Any) -> Envelope:
        return _said(
            event_class="Attestation", payload=payload, correlation_id="c-1", evidence=proof, **members
        )

    halves = [str(int(digest[:32], 16)), str(int(digest[32:], 16))]

    def snark(inputs: list[str]) -> Value:
        return {"system": "x", "curve": "y", "vk_sha256": "0" * 64, "public_inputs": inputs, "proof": {}}

    def statement(subject: str) -> Value:
        body: Value = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"digest": {"blake3": subject}}],
        }
        return {
            "payloadType": "application/vnd.in-toto+json",
            "payload": b64encode(jcs.encode(body)).decode(),
            "signatures": [],
        }

    bound = {"tee_type": "sev", "report_data": report_data(bytes.fromhex(digest), "c-1").hex()}
    other = {"tee_type": "sev", "report_data": report_data(bytes(32), "c-1").hex()}
    literal = {"tee_type": "sev", "report_data": digest}
    tee = evidence("tee.report", bound)
    in_base64 = {**tee, "evidence_hash": b64encode(blake3(jcs.encode(bound))).decode()}
    return (
        "attestation_binding",
        "Evidence must speak of this payload and this correlation id, or it proves nothing here.",
        [
            _case("no_evidence_needed", _said(), 5, "passed"),
            _case("report_is_bound", attested(tee), 5, "passed"),
            _case("evidence_hash_in_base64", attested(in_base64), 5, "passed"),
            _case("statement_is_bound", attested(evidence("slsa.v1", statement(digest))), 5, "passed"),
            _case(
                "report_lies_elsewhere",
                attested({"format": "tee.report", "evidence_hash": "0" * 64}),
                5,
                "not_checked",
            ),
            _case("snark_is_bound", attested(evidence("snark.v1", snark(halves))), 5, "passed"),
            _case(
                "snark_about_another_payload", attested(evidence("snark.v1", snark(["1", "2"]))), 5, "failed"
            ),
            _case("snark_without_inputs", attested(evidence("snark.v1", {"system": "x"})), 5, "failed"),
            _case("attestation_without_evidence", attested(None), 5, "failed"),
            _case("report_about_another_payload", attested(evidence("tee.report", other)), 5, "failed"),
            _case("report_holds_the_hash_alone", attested(evidence("tee.report", literal)), 5, "failed"),
            _case(
                "report_without_report_data",
                attested(evidence("tee.report", {"tee_type": "sev"})),
                5,
                "failed",
            ),
            _case(
                "evidence_hash_of_something_else", attested({**tee, "evidence_hash": "0" * 64}), 5, "failed"
            ),
            _case(
                "statement_about_another_payload",
                attested(evidence("slsa.v1", statement("0" * 64))),
                5,
                "failed",
            ),
            _case("statement_is_not_base64", attested(evidence("slsa.v1", {"payload": "?"})), 5, "failed"),
        ],
    )


def _level() -> tuple[str, str, list[Value]]:
    detached = {"locator": "https://example.org/body", "bytes": 7}

    demands = {"policy": STRICT_VALUE}

    def at(level: str, **members: Any) -> Envelope:
        refs = {"key_ref": members.pop("key_ref")} if "key_ref" in members else {}
        return _said(confidentiality={"level": level, **refs}, **members)

    return (
        "confidentiality",
        "Restricted envelopes pass only where a policy lets them; a policy may demand more of any level.",
        [
            _case("nothing_said", _said(), 6, "passed"),
            *(
                _case(f"{level}_without_policy", at(level), 6, "passed")
                for level in ("public", "internal", "confidential")
            ),
            _case("restricted_without_policy", at("restricted"), 6, "failed"),
            _case(
                "restricted_as_demanded",
                at("restricted", key_ref="k", detached=detached),
                6,
                "passed",
                policy=STRICT_VALUE,
            ),
            _case(
                "restricted_with_payload_inside",
                at("restricted", key_ref="k"),
                6,
                "failed",
                policy=STRICT_VALUE,
            ),
            _case(
                "restricted_without_key",
                at("restricted", detached=detached),
                6,
                "failed",
                policy=STRICT_VALUE,
            ),
            _case("confidential_with_payload_inside", at("confidential"), 6, "failed", **demands),
            _case(
                "restricted_under_a_policy_that_is_silent",
                at("restricted", key_ref="k", detached=detached),
                6,
                "failed",
                policy={"version": 1, "rules": []},
            ),
            _malformed(
                "unknown_level",
                _signed(_with(_said(), confidentiality_tag={"level": "secret"})),
                "InvalidEnvelope",
            ),
        ],
    )


def _proof() -> tuple[str, str, list[Value]]:
    leaves = [merkle.LEDGER.leaf(bytes([i])) for i in range(5)]
    root = merkle.root(leaves)

    def proof(**change: Any) -> Value:
        value: Value = {
            "leaf": leaves[3].hex(),
            "index": 3,
            "size": 5,
            "path": [each.hex() for each in merkle.inclusion_proof(leaves, 3)],
            "root": root.hex(),
            **change,
        }
        return {"type": "merkle", "proof": b64encode(jcs.encode(value)).decode()}

    def carrying(value: Value) -> Envelope:
        return _said(integrity_proof=value)

    three = leaves[:3]
    doubled_root = merkle.root_seed(three)
    doubled = proof(
        leaf=three[2].hex(),
        index=3,
        size=4,
        path=[three[2].hex(), merkle.LEDGER.node(three[0], three[1]).hex()],
        root=doubled_root.hex(),
    )
    path = [each.hex() for each in merkle.inclusion_proof(leaves, 3)]
    roots = [
        {"root": root.hex(), "envelope_count": 5},
        {"root": merkle.root(three).hex(), "envelope_count": 3},
    ]
    return (
        "integrity_proof",
        "A Merkle proof leads from its leaf, index and size to a root the channel holds; other kinds are not checked.",
        [
            _case("none", _said(), 7, "passed"),
            _case("leads_to_an_earlier_block", carrying(proof()), 7, "passed", roots=roots),
            _case("snark", carrying({"type": "snark", "proof": "AA=="}), 7, "not_checked", roots=roots),
            _case(
                "lattice_is_never_verified",
                carrying({"type": "lattice", "proof": "AA=="}),
                7,
                "not_checked",
                roots=roots,
            ),
            _case("root_not_in_the_channel", carrying(proof()), 7, "failed", roots=[]),
            _case("wrong_index", carrying(proof(index=2)), 7, "failed", roots=roots),
            _case("wrong_size", carrying(proof(size=6)), 7, "failed", roots=roots),
            _case("index_outside", carrying(proof(index=5)), 7, "failed", roots=roots),
            _case("path_too_long", carrying(proof(path=[*path, path[0]])), 7, "failed", roots=roots),
            _case("path_too_short", carrying(proof(path=path[:-1])), 7, "failed", roots=roots),
            _case("path_altered", carrying(proof(path=[path[0][::-1], *path[1:]])), 7, "failed", roots=roots),
            _case("odd_leaf_doubled", carrying(doubled), 7, "failed", roots=roots),
            _case("not_base64", carrying({"type": "merkle", "proof": "?"}), 7, "failed", roots=roots),
            _case("members_missing", carrying({"type": "merkle", "proof": "e30="}), 7, "failed", roots=roots),
        ],
    )


def _replay() -> tuple[str, str, list[Value]]:
    def alert(number: int, **members: Any) -> Envelope:
        return _said(number, event_class="Alert", correlation_id="a-1", **members)

    ask = _said(event_class="Command", correlation_id="c-1")
    again = _said(1, event_class="Command", correlation_id="c-1")
    done = _said(2, event_class="Result", parent=ask)
    done_again = _said(3, event_class="Result", parent=ask)
    strict = {"policy_hash": STRICT.hash.hex()}
    allow, deny = {**strict, "decision": "allow"}, {**strict, "decision": "deny"}
    foreign = {"policy_hash": "00" * 32, "decision": "allow"}
    said_once, policy = [alert(6).value], {"policy": STRICT_VALUE}
    evidence = {"format": "tee.report", "evidence_hash": "0" * 64}
    rich = _said(5, evidence=evidence, signed_fields=DEFAULT_SIGNED)
    stripped = {k: v for k, v in rich.value.items() if k != "attestation_evidence"}
    return (
        "replay_protection",
        "A Command or Result is said once in the whole history of a channel; what was signed once stands once.",
        [
            _case("first_command", ask, 8, "passed", history=[]),
            _case("result_shares_the_id_of_its_command", done, 8, "passed", history=[ask.value]),
            _case(
                "observations_may_share_an_id",
                _said(4, correlation_id="c-1"),
                8,
                "passed",
                history=[ask.value],
            ),
            _case(
                "alert_again_where_allowed",
                alert(7, policy_tag=allow),
                8,
                "passed",
                history=said_once,
                **policy,
            ),
            _case("command_again", again, 8, "failed", history=[ask.value]),
            _case("result_again", done_again, 8, "failed", history=[ask.value, done.value]),
            _case("alert_again", alert(7), 8, "failed", history=said_once),
            _case("alert_again_denied", alert(7, policy_tag=deny), 8, "failed", history=said_once, **policy),
            _case(
                "alert_again_under_a_foreign_policy",
                alert(7, policy_tag=foreign),
                8,
                "failed",
                history=said_once,
                **policy,
            ),
            _case("alert_again_without_policy", alert(7, policy_tag=allow), 8, "failed", history=said_once),
            _case("same_statement_stripped_of_evidence", stripped, 8, "failed", history=[rich.value]),
        ],
    )
