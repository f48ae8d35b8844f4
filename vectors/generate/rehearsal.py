"""Cases for rehearsals: the roots that two versions give, after how many blocks, and whether a rehearsal holds.

Computed from the rules of `docs/reference/ledger.md`: adapters, states and roots are made here, not with the product.
"""

from __future__ import annotations

import json
from typing import Any

from blake3 import blake3

Case = dict[str, Any]
ALWAYS = ["protocol_version", "domain", "event_class", "event_type", "timestamp", "origin_identity"]
ALWAYS += ["payload_hash", "signature", "payload"]
# Which versions have which further fields: 1.1 adds an optional one, 2.0 keeps it and adds a required one.
ADDED = {"1.0": [], "1.1": ["priority"], "2.0": ["priority", "tenant"]}
REQUIRED = {"2.0": ["tenant"]}


def root_of(state: Any) -> str:
    text = json.dumps(state, sort_keys=True, separators=(",", ":"))
    return blake3(b"ea:state:v1" + text.encode()).hexdigest()


def seen(event: Case, minor: str) -> set[str]:
    """Return the members of an event as the adapter of a version shows them."""
    has = {name for name in event["has"] if name in ("correlation_id", *ADDED[minor])}
    return {*ALWAYS, *has, *REQUIRED.get(minor, ()), "causality_chain", "confidentiality_tag"}


def snapshots(events: list[Case], minors: list[str]) -> list[Case]:
    states: list[dict[str, int]] = [{}, {}]
    every = -(-len(events) // 16) or 1
    found = []
    for number, event in enumerate(events, 1):
        for state, minor in zip(states, minors, strict=True):
            for name in seen(event, minor):
                state[name] = state.get(name, 0) + 1
        if number % every == 0 or number == len(events):
            roots = map(root_of, states)
            found.append({"blocks": number, "from_root": next(roots), "to_root": next(roots)})
    return found or [{"blocks": 0, "from_root": root_of({}), "to_root": root_of({})}]


def made(name: str, why: str, source: str, target: str, *events: Case) -> Case:
    found = snapshots(list(events), [source, target])
    holds = all(each["from_root"] == each["to_root"] for each in found)
    given = {"from": f"{source}.x", "to": f"{target}.x", "events": list(events)}
    return {"name": name, "why": why, "input": given, "expect": {"snapshots": found, "holds": holds}}


def rehearsals() -> Case:
    plain, chained = {"version": "1.0.0", "has": []}, {"version": "1.0.0", "has": ["correlation_id"]}
    urgent, older = {"version": "1.1.0", "has": ["priority"]}, {"version": "1.1.0", "has": []}
    tagged = {"version": "1.0.0", "has": ["confidentiality_tag"]}
    return {
        "about": "A channel has one event in each block; `has` lists its optional members. 1.1 adds the optional field "
        'priority; 2.0 has it too, and requires tenant, which reads as "default" in older events. The reducer counts '
        "how many events have each member. Which snapshots has the rehearsal, and does it hold?",
        "cases": [
            made("empty", "one snapshot of no blocks", "1.0", "1.1"),
            made("equal", "no event has a new field", "1.0", "1.1", plain, chained, tagged, older),
            made("optional", "older readers do without it", "1.0", "1.1", plain, urgent, plain),
            made("downgrade", "the way back shows the same", "1.1", "1.0", urgent, plain),
            made("required", "older events have the legacy value", "1.1", "2.0", plain, urgent),
            made("sixteen", "a snapshot for each block", "1.0", "1.1", *[plain] * 15, urgent),
            made("seventeen", "every second block, and the last", "1.0", "1.1", *[chained] * 17),
            made("diverges_late", "after the ninth snapshot", "1.0", "1.1", *[plain] * 18, urgent, plain),
        ],
    }


def judged() -> Case:
    one, two, three = (root_of({"n": number}) for number in range(3))

    def payload(*found: tuple[int, str, str], **changes: Any) -> Case:
        rows = [{"blocks": blocks, "from_root": ours, "to_root": theirs} for blocks, ours, theirs in found]
        return {
            "version": 1,
            "channel": "ea.core",
            "from": "1.0.x",
            "to": "1.1.x",
            "reducer": "counts",
            "blocks": 4,
            "block_hash": "11" * 32,
            "policy_hash": None,
            "snapshots": rows,
            **changes,
        }

    def case(name: str, why: str, given: Case, expect: bool | None) -> Case:
        outcome = {"error": "RopewalkError"} if expect is None else {"expect": expect}
        return {"name": name, "why": why, "input": given, **outcome}

    whole = ((2, one, one), (4, two, two))
    return {
        "about": "Does a rehearsal hold? A payload of another form is an error.",
        "cases": [
            case("holds", "equal roots up to the last block", payload(*whole), True),
            case("policy", "it names the policy", payload(*whole, policy_hash="22" * 32), True),
            case("last_differs", "other states at the end", payload((2, one, one), (4, two, three)), False),
            case("first_differs", "on the way", payload((2, one, two), (4, two, two)), False),
            case("short", "the last blocks are not covered", payload((2, one, one)), False),
            case("beyond", "more blocks than it says", payload(*whole, blocks=3), False),
            case("none", "no snapshot", payload(), False),
            case(
                "eighteen",
                "at most seventeen",
                payload(*[(n, one, one) for n in range(1, 19)], blocks=18),
                None,
            ),
            case("short_root", "64 hex digits", payload((4, one, one[:-2])), None),
            case("upper_case", "lowercase", payload((4, one.upper(), one.upper())), None),
            case("range", "a version as 1.1.x", payload(*whole, to="1.1.0"), None),
            case("more_members", "exactly these", payload(*whole, note="x"), None),
            case("version", "form 1", payload(*whole, version=2), None),
            case("no_hash", "the last block is named", payload(*whole, block_hash=None), None),
        ],
    }


def generate() -> dict[str, object]:
    return {"ledger_versions/rehearsal.json": rehearsals(), "ledger_versions/holds.json": judged()}
