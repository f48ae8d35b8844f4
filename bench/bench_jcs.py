"""Canonical bytes of envelopes beside rfc8785, equal byte for byte; strict parsing beside the standard library."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any

import rfc8785

from bench.harness import Contestant, Result, compare
from ropewalk.kernel import jcs

__all__ = ["envelope", "run"]

SIGNED = [
    "protocol_version",
    "domain",
    "event_class",
    "event_type",
    "timestamp",
    "origin_identity",
    "payload_hash",
]

Reading = Callable[[random.Random], Any]


def whole(chance: random.Random) -> int:
    return chance.randrange(1_000_000)


def decimal(chance: random.Random) -> float:
    return chance.random() * 100


def awkward(chance: random.Random) -> float:
    """What orjson prints in its own way: mostly integral floats, as data frames make them, and some exponents."""
    return float(chance.randrange(1000)) if chance.random() < 0.9 else chance.random() * 1e-9


def envelope(size: int, reading: Reading = whole, seed: int = 4) -> dict[str, Any]:
    """A signed S4 envelope of at least `size` canonical bytes; its readings come from `reading`."""
    chance = random.Random(seed)
    payload: dict[str, Any] = {"level": reading(chance)}
    made: dict[str, Any] = {
        "protocol_version": "1.0.0",
        "domain": "ea.core",
        "event_class": "Observation",
        "event_type": "tank.level",
        "timestamp": "2024-11-01T12:00:00Z",
        "origin_identity": {"identity_type": "ed25519", "public_key": chance.randbytes(32).hex()},
        "payload_hash": chance.randbytes(32).hex(),
        "signature": {
            "alg": "ed25519",
            "sig": base64.b64encode(chance.randbytes(64)).decode(),
            "signed_fields": SIGNED,
        },
        "payload": payload,
    }
    if size > 1000:
        made["correlation_id"] = chance.randbytes(16).hex()
        made["causality_chain"] = [made["correlation_id"]]
        made["confidentiality_tag"] = {"level": "internal"}
        samples: list[dict[str, Any]] = []
        payload["samples"] = samples
        count = 0
        while count == 0 or len(rfc8785.dumps(made)) < size:
            more = max(1, (size - len(rfc8785.dumps(made))) // 120)
            samples += [sample(chance, reading, count + each) for each in range(more)]
            count += more
    return made


def sample(chance: random.Random, reading: Reading, number: int) -> dict[str, Any]:
    return {
        "at": f"2024-11-01T12:{number // 60 % 60:02d}:{number % 60:02d}Z",
        "sensor": f"tank-{chance.randrange(40)}/level",
        "value": reading(chance),
        "unit": "mm",
        "good": chance.random() < 0.95,
        "note": "über dem Soll" if number % 16 == 0 else "within bounds",
    }


def run(quick: bool) -> list[Result]:
    """Three sizes, three kinds of numbers; every pair of outputs is compared before anything is timed."""
    rounds = 5 if quick else 15
    results: list[Result] = []
    for size, label in ((480, "0.5 KB"), (2_000, "2 KB"), (64_000, "64 KB")):
        kinds: list[tuple[str, Reading]] = [
            ("", whole),
            (", floats", decimal),
            (", integral floats", awkward),
        ]
        for kind, reading in kinds:
            envelopes = [envelope(size, reading, seed) for seed in range(max(3, 100_000 // size))]
            wrong = sum(jcs.encode(each) != rfc8785.dumps(each) for each in envelopes)
            if wrong:
                raise AssertionError(f"{wrong} mismatches: the comparison would mean nothing")
            results += compare(
                f"JCS {label}{kind}",
                Contestant("ropewalk", lambda envelopes=envelopes: each_of(jcs.encode, envelopes)),  # type: ignore[misc]
                [Contestant("rfc8785", lambda envelopes=envelopes: each_of(rfc8785.dumps, envelopes))],  # type: ignore[misc]
                target=None if reading is awkward else 6,
                rounds=rounds,
                note=f"{len(rfc8785.dumps(envelopes[0]))} bytes, {len(envelopes)} envelopes, 0 mismatches",
            )
        texts = [rfc8785.dumps(envelope(size, decimal, seed)) for seed in range(max(3, 100_000 // size))]
        results += compare(
            f"strict parse {label}",
            Contestant("ropewalk", lambda texts=texts: each_of(jcs.parse, texts)),  # type: ignore[misc]
            [Contestant("json + hook", lambda texts=texts: each_of(by_library, texts))],  # type: ignore[misc]
            target=None,
            rounds=rounds,
            note="the peer refuses duplicate keys only",
        )
    return results


def each_of(act: Callable[[Any], object], given: list[Any]) -> int:
    for one in given:
        act(one)
    return len(given)


def by_library(raw: bytes) -> object:
    return json.loads(raw, object_pairs_hook=unique)


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("duplicate key")
    return members
