"""Checking an S4 envelope against its schema, beside the jsonschema package with the same schema and formats."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

from bench.bench_jcs import envelope
from bench.harness import Contestant, Result, compare
from ropewalk.errors import InvalidEnvelope
from ropewalk.kernel.schema import shipped as schema

__all__ = ["run"]

NAME = "ledger/envelope"


def run(quick: bool) -> list[Result]:
    """Valid envelopes of three sizes, and refusals with their explanation."""
    rounds = 5 if quick else 15
    peer = Draft202012Validator(json.loads(schema.text(NAME)), format_checker=FormatChecker())
    results: list[Result] = []
    for size, label, target in ((480, "0.5 KB", 50), (2_000, "2 KB", 50), (64_000, "64 KB", None)):
        envelopes = [envelope(size, seed=seed) for seed in range(5)]
        broken = [{**each, "payload_hash": "blake3:" + each["payload_hash"]} for each in envelopes]
        if not all(map(peer.is_valid, envelopes)) or any(map(peer.is_valid, broken)):
            raise AssertionError("the two validators disagree: the comparison would mean nothing")

        def ours_valid(envelopes: list[dict[str, Any]] = envelopes) -> int:
            for _ in range(100):
                for each in envelopes:
                    schema.validate(NAME, each)
            return 100 * len(envelopes)

        def peer_valid(envelopes: list[dict[str, Any]] = envelopes) -> int:
            for each in envelopes:
                peer.validate(each)
            return len(envelopes)

        def ours_broken(broken: list[dict[str, Any]] = broken) -> int:
            for each in broken:
                try:
                    schema.validate(NAME, each)
                except InvalidEnvelope:
                    continue
            return len(broken)

        def peer_broken(broken: list[dict[str, Any]] = broken) -> int:
            return sum(next(peer.iter_errors(each), None) is not None for each in broken)

        results += compare(
            f"schema check {label}",
            Contestant("ropewalk", ours_valid),
            [Contestant("jsonschema", peer_valid)],
            target=target,
            rounds=rounds,
            note="the payload is free, so size matters little" if target is None else "",
        )
        results += compare(
            f"schema refusal {label}",
            Contestant("ropewalk", ours_broken),
            [Contestant("jsonschema", peer_broken)],
            target=None,
            rounds=rounds,
            note="ours words the first fault; the peer finds any",
        )
    return results
