"""A run of envelopes that compiled loops check at once has the verdict that each has without the loops."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.tools import skip_or_fail
from tests.unit.ledger.making import ADA, NODE, NOON_NS, P256, SECP, changed, observed

from ropewalk import native
from ropewalk.errors import RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.merkle import LEDGER
from ropewalk.kernel.signatures import ED25519_REFUSED, sodium_open
from ropewalk.ledger.block.block import GENESIS, Block, seal
from ropewalk.ledger.envelope import run as run_module
from ropewalk.ledger.envelope import template_cache
from ropewalk.ledger.envelope.envelope import parse_run, parse_stored
from ropewalk.ledger.envelope.fields import DEFAULT_SIGNED
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.envelope.run import EnvelopeRun
from ropewalk.ledger.ingest.thread_pool import ThreadPool
from ropewalk.ledger.keys.revocations import Revocation
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.proof.verify import BlockSpan, check_block, check_channel
from ropewalk.ledger.rules.policy import Policy, parse_policy
from ropewalk.pipeline.source.notes import Marks

COUNT = 20
AT = 11
TRUST = Trust((NODE.public,), ())
ORDER = 2**252 + 27742317777372353535851937790883648493


@pytest.fixture(autouse=True)
def no_moulds():
    template_cache._moulds.clear()
    template_cache._packed = None


def learnt(*envelopes: Envelope) -> None:
    for each in envelopes:
        parse_stored(each.raw)


def with_signature(envelope: Envelope, signature: bytes) -> bytes:
    signed = {**envelope.value["signature"], "sig": b64encode(signature).decode()}
    return jcs.encode({**envelope.value, "signature": signed})


def blocks_with(
    raw: bytes | None = None, *, policy: Policy | None = None, again: int | None = None
) -> list[Block]:
    """Three blocks; one envelope of the second is replaced by the given one, or by an earlier one."""
    made: list[Block] = []
    for height in range(3):
        raws = [observed(COUNT * height + number).raw for number in range(COUNT)]
        if height == 1 and (raw is not None or again is not None):
            raws[AT] = observed(again).raw if raw is None and again is not None else raw or b""
        below = made[-1].hash if made else GENESIS
        hashed = None if policy is None else policy.hash
        block = seal(
            NODE,
            channel="ea.core",
            height=height,
            prev_block_hash=below,
            envelopes=raws,
            timestamp_ns=NOON_NS + height,
            policy_hash=hashed,
        )
        made.append(block)
    return made


def verdicts(
    blocks: list[Block], trust: Trust = TRUST, policy: Policy | None = None
) -> tuple[BlockSpan, Any]:
    """What the whole channel and each block alone come to, and what is marked for checks across blocks."""
    stored = [(block.height, block.lines()) for block in blocks]
    marks = Marks()
    with ThreadPool(2) as pool:
        whole = check_channel(stored, trust=trust, policy=policy, parallel_map=pool)
    alone: list[BlockSpan] = [
        check_block(lines, height, trust=trust, policy=policy, on_envelopes=marks.take)
        for height, lines in stored
    ]
    return whole, (alone, marks.made, marks.asked)


def both(blocks: list[Block], **options: Any) -> BlockSpan:
    """The verdict on the channel, the same with the loops and without."""
    learnt(*(parse_stored(block.envelopes[0]) for block in blocks))
    found = verdicts(blocks, **options)
    with native.switched_off():
        assert verdicts(blocks, **options) == found
    return found[0]


def test_sound_blocks_pass_as_runs():
    blocks = blocks_with()
    learnt(observed())
    if native.is_here():
        run = parse_run(blocks[0].envelopes, [LEDGER.leaf(raw) for raw in blocks[0].envelopes])
        assert isinstance(run, EnvelopeRun) and list(run) == [
            parse_stored(raw) for raw in blocks[0].envelopes
        ]
    span = both(blocks)
    assert (span.fault, span.envelopes, span.unchecked) == (None, 3 * COUNT, 0)


def test_without_the_address_of_libsodium_each_key_verifies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_module, "sodium_open", lambda: None)
    assert both(blocks_with()).fault is None
    fault = both(blocks_with(ODD["signature_of_another"])).fault
    assert fault is not None and (fault.height, fault.index) == (1, AT)


ODD: dict[str, bytes] = {
    "signature_of_another": with_signature(observed(99), observed(98).signature_bytes),
    "signature_of_another_key": with_signature(observed(99), observed(99, NODE).signature_bytes),
    "refused_r": with_signature(observed(99), ED25519_REFUSED[:32] + observed(99).signature_bytes[32:]),
    "s_beyond_the_order": with_signature(
        observed(99),
        observed(99).signature_bytes[:32]
        + (int.from_bytes(observed(99).signature_bytes[32:], "little") + ORDER).to_bytes(32, "little"),
    ),
    "too_little_signed": observed(99, signed_fields=DEFAULT_SIGNED[1:]).raw,
    "command_without_correlation": observed(99, event_class="Command").raw,
    "result_without_correlation": observed(99, event_class="Result").raw,
    "unsupported_version": changed(observed(99), protocol_version="7.0.0").raw,
    "attestation_without_evidence": observed(99, event_class="Attestation").raw,
    "wrong_payload": observed(99).raw.replace(b'{"n":99}', b'{"n":98}'),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_envelope_in_a_run_is_named(name: str):
    odd = ODD[name]
    learnt(observed())
    for _ in range(2):  # the second time, its template may be known
        fault = both(blocks_with(odd)).fault
        assert fault is not None and (fault.height, fault.index, fault.step) == (1, AT, "envelopes")


@pytest.mark.parametrize("name", ODD)
def test_run_of_nothing_but_odd_envelopes_fails_at_the_first(name: str):
    learnt(observed())
    first = ODD[name]
    block = seal(
        NODE,
        channel="ea.core",
        height=0,
        prev_block_hash=GENESIS,
        envelopes=[first] + [ODD[name]] * 9,
        timestamp_ns=NOON_NS,
    )
    fault = both([block]).fault
    assert fault is not None and fault.index == 0


@pytest.mark.parametrize("again", [3, COUNT + 3])
def test_statement_made_again_is_refused(again: int):
    """In an earlier block, and earlier in the same run."""
    blocks = blocks_with(again=again)
    fault = both(blocks).fault
    assert (
        fault is not None
        and (fault.height, fault.index) == (1, AT)
        and "is already at height" in fault.detail
    )


@pytest.mark.parametrize("key", [P256, SECP, NODE], ids=lambda key: key.alg)
def test_other_authors_pass_too(key: Any):
    learnt(observed(0, key))
    assert both(blocks_with(observed(99, key).raw)).fault is None


def test_revoked_author_is_refused():
    since = "2024-11-01T12:00:00.000000001Z"  # the time of the second block
    trust = replace(TRUST, revocations=(Revocation(ADA.public.identity(), since, ""),))
    fault = both(blocks_with(), trust=trust).fault
    assert fault is not None and (fault.height, fault.index) == (1, 0) and "revoked since" in fault.detail


def test_policy_still_decides_about_each():
    small = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 98}}}
    rule = {"id": "n", "name": "n", "version": 1, "kind": "schema", "decision": "deny", "schema": small}
    policy = parse_policy(jcs.encode({"version": 1, "rules": [rule]}))
    assert both(blocks_with(policy=policy), policy=policy).fault is None
    fault = both(blocks_with(observed(99).raw, policy=policy), policy=policy).fault
    assert fault is not None and (fault.height, fault.index) == (1, AT) and "policy" in fault.detail


def test_slices_of_a_run_are_runs():
    learnt(observed())
    raws = [observed(number).raw for number in range(COUNT)]
    run = parse_run(raws, [LEDGER.leaf(raw) for raw in raws])
    if not isinstance(run, EnvelopeRun):
        skip_or_fail("no C compiler built the loops")
    part = run[3:9]
    assert isinstance(part, EnvelopeRun) and list(part) == list(run)[3:9] and part.ids() == run.ids()[3:9]
    assert part.surely_signed() == run.surely_signed()[3:9] == bytes([1] * 6)
    assert part.intents() == b"".join(each.intent for each in part)
    assert part.timestamps() == [each.timestamp for each in map(parse_stored, raws[3:9])]
    assert part.payloads() == [each.payload_raw for each in map(parse_stored, raws[3:9])]
    assert run[0:0].surely_signed() == b"" and len(run[-1:]) == 1


@pytest.mark.parametrize(
    "case",
    json.loads((Path(__file__).parents[3] / "vectors/keys/ed25519_edge_cases.json").read_text())["cases"],
    ids=lambda case: case["name"],
)
def test_loop_never_takes_a_signature_that_the_key_refuses(case: dict[str, Any]):
    sign_open = sodium_open()
    if not native.is_here() or sign_open is None:
        skip_or_fail("no C compiler built the loops")
    from ropewalk.native.canonical import surely_signed

    given = {name: bytes.fromhex(case["input"][name]) for name in ("public_key", "message", "signature")}
    message = given["signature"] + given["message"]
    try:
        PublicKey("ed25519", given["public_key"]).verify(given["message"], given["signature"])
        holds = True
    except RopewalkError:
        holds = False
    found = surely_signed(sign_open, message, [len(message)], given["public_key"], [0], ED25519_REFUSED)
    assert found == bytes([holds]) or (found == b"\0" and given["signature"][-1] >= 0x10)
    assert surely_signed(sign_open, message, [len(message)], given["public_key"], [-1], b"") == b"\0"
