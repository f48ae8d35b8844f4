"""Cases for rules of a policy that hold payloads against schemas (S4 §3.1), and for schemas that no policy may have.

Keys are fixed, so the file comes out the same every time. A case gives a `policy` and an `envelope`; it expects the
decision and the ids of the rules that spoke. Where the policy itself is refused there is no envelope.
"""

from __future__ import annotations

from typing import Any

from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.envelope.envelope import build

Value = dict[str, Any]

ADA = SigningKey.generate("ed25519", b"ada" + bytes(29))
DIALECT = "https://json-schema.org/draft/2020-12/schema"
ORDER: Value = {
    "$schema": DIALECT,
    "type": "object",
    "required": ["id", "lines"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "pattern": "^o-[0-9]+$"},
        "lines": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/line"}},
        "due": {"type": "string", "format": "date"},
    },
    "$defs": {
        "line": {
            "type": "object",
            "required": ["sku"],
            "properties": {"sku": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
        }
    },
}
GOOD: Value = {"id": "o-1", "lines": [{"sku": "rope", "count": 2}]}


def generate() -> dict[str, object]:
    """The file."""
    cases = [*_judged(), *_refused()]
    why = "A rule of the kind schema speaks when the payload does not fit; its schema is closed, bounded and local."
    return {"ledger_policy/schema.json": {"name": "schema", "why": why, "cases": cases}}


def _rule(schema: Value, **members: Any) -> Value:
    rule = {"id": "order", "name": "payloads", "version": 1, "kind": "schema", "decision": "deny"}
    return {**rule, "schema": schema, "when": {"types": ["order.*"]}, **members}


def _policy(*rules: Value) -> Value:
    return {"version": 1, "rules": list(rules)}


def _case(
    name: str, payload: Any, decision: str, *spoke: str, policy: Value | None = None, **members: Any
) -> Value:
    options: Value = {
        "domain": "shop",
        "event_class": "Observation",
        "event_type": "order.placed",
        "timestamp": "2024-11-01T12:00:00Z",
        **members,
    }
    envelope = build(ADA, payload=payload, **options).value
    given = {"policy": policy or _policy(_rule(ORDER)), "envelope": envelope}
    verdict = {"decision": decision, "rules": list(spoke)}
    return {"name": name, "input": given, "error" if decision == "deny" else "expect": verdict}


def _judged() -> list[Value]:
    lines = GOOD["lines"]
    closed = {"id": "closed", "name": "payloads", "version": 1, "kind": "schema_declared", "decision": "deny"}
    detached: Value = {"locator": "https://example.org/body"}
    return [
        _case("fits", GOOD, "allow"),
        _case("integral_float_is_an_integer", {**GOOD, "lines": [{"sku": "rope", "count": 2.0}]}, "allow"),
        _case("other_type_of_event", {"anything": 1}, "allow", event_type="ship.left"),
        _case("member_missing", {"id": "o-1"}, "deny", "order"),
        _case("member_too_many", {**GOOD, "note": ""}, "deny", "order"),
        _case(
            "wrong_behind_a_reference", {**GOOD, "lines": [*lines, {"sku": "x", "count": 0}]}, "deny", "order"
        ),
        _case("true_is_no_integer", {**GOOD, "lines": [{"sku": "x", "count": True}]}, "deny", "order"),
        _case("pattern_holds_the_whole_text", {**GOOD, "id": "o-1\n"}, "deny", "order"),
        _case("formats_are_asserted", {**GOOD, "due": "2024-02-30"}, "deny", "order"),
        _case("null_is_a_payload", None, "deny", "order"),
        _case("audit_lets_pass", {}, "audit", "order", policy=_policy(_rule(ORDER, decision="audit"))),
        _case("detached_cannot_be_seen_to_fit", GOOD, "deny", "order", detached=detached),
        _case(
            "detached_may_be_let_pass",
            GOOD,
            "allow",
            "order",
            detached=detached,
            policy=_policy(_rule(ORDER, detached="allow")),
        ),
        _case(
            "no_schema_declared", {}, "deny", "closed", event_type="x", policy=_policy(_rule(ORDER), closed)
        ),
        _case("schema_declared", GOOD, "allow", policy=_policy(_rule(ORDER), closed)),
    ]


def _refused() -> list[Value]:
    doubling: Value = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(20)}
    schemas: dict[str, Value] = {
        "keyword_misspelt": {"requierd": ["id"]},
        "other_dialect": {"$schema": "http://json-schema.org/draft-07/schema#"},
        "reference_to_elsewhere": {"$ref": "https://example.org/order.json"},
        "reference_to_the_meta_schema": {"$ref": DIALECT},
        "reference_to_a_file": {"items": {"$ref": "file:///etc/passwd"}},
        "reference_to_nothing": {"$ref": "#/$defs/line"},
        "reference_to_what_is_no_schema": {"enum": [{"type": "null"}], "items": {"$ref": "#/enum/0"}},
        "leads_back_to_itself": {"properties": {"inner": {"$ref": "#"}}},
        "never_ends": {"$ref": "#"},
        "doubles_twenty_times": {"$ref": "#/$defs/a0", "$defs": {**doubling, "a20": {}}},
        "unknown_format": {"format": "colour"},
        "unknown_type": {"type": "text"},
        "pattern_with_back_reference": {"pattern": "^(a+)\\1$"},
        "pattern_is_none": {"pattern": "("},
    }
    return [
        {"name": name, "input": {"policy": _policy(_rule(schema))}, "error": "Invalid"}
        for name, schema in schemas.items()
    ]
