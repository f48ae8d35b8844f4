"""The enclave bridge: blocks inside are anchored outside, and a verifier leads from one to the other."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.calling import Answer
from tests.unit.ledger.making import ADA, NOON_NS, observed
from tests.unit.ledger.test_enclave import KEY
from tests.unit.ledger.test_quarantine import TRUST, attest
from tests.unit.ledger.test_remote import served

from ropewalk.errors import Unverified
from ropewalk.ledger.channel.channel import open_channel, open_log
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.model import Envelope, envelope_id
from ropewalk.ledger.mailbox.anchoring import anchor_blocks
from ropewalk.ledger.mailbox.enclave import EnclaveOffer
from ropewalk.ledger.mailbox.enclave_bridge import anchor_envelope, anchor_payload, check_anchor
from ropewalk.ledger.mailbox.enclave_channel import DecryptingLog, seal_envelope
from ropewalk.ledger.proof.proof import Proof
from ropewalk.ledger.remote.sync_client import connect_channel

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[3]


def internal(number: int) -> Envelope:
    return observed(number, confidentiality={"level": "confidential", "enclave_ref": "pay-1"})


def bridged(tmp_path: Any, numbers: list[int]) -> tuple[int, int | None]:
    """Open sealed envelopes inside, then anchor the blocks outside."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    if not (inside / "ledger" / "pay").exists():
        create_channel(inside, "pay", "box", ADA.public)
    with open_log(inside, "pay", ADA, now_ns=lambda: NOON_NS) as opened:
        log = DecryptingLog(opened.log, "pay", KEY)
        for number in numbers:
            log.submit(seal_envelope(internal(number), "pay", KEY.offer).to_bytes())

    async def main() -> tuple[int, int | None]:
        async with served(outside, now_ns=lambda: NOON_NS) as server:

            def act() -> tuple[int, int | None]:
                with connect_channel(server.url, "audit") as remote:
                    return anchor_blocks(inside, "pay", remote, "audit", ADA, attest, now_ns=lambda: NOON_NS)

            return await asyncio.to_thread(act)

    return asyncio.run(main())


def anchors(tmp_path: Any) -> list[Proof]:
    with open_channel(tmp_path / "outside", "audit") as channel:
        ids = [envelope_id(raw) for block in channel.blocks() for raw in block.envelopes]
        return [channel.prove(each) for each in ids]


def test_bridge_anchors_blocks_without_contents(tmp_path):
    assert bridged(tmp_path, [1, 2]) == (2, 1)
    assert bridged(tmp_path, [3]) == (1, 2)  # only what is new
    assert bridged(tmp_path, []) == (0, 2)
    with open_channel(tmp_path / "inside", "pay") as channel:
        records = [block.record for block in channel.blocks()]
    found = anchors(tmp_path)
    assert [proof.envelope.payload for proof in found] == [anchor_payload(record) for record in records]
    for proof, record in zip(found, records, strict=True):
        check_anchor(proof, record, TRUST)
        assert internal(1).raw[:60] not in proof.to_bytes()


def test_anchor_of_another_block_is_refused(tmp_path):
    bridged(tmp_path, [1, 2])
    with open_channel(tmp_path / "inside", "pay") as channel:
        first, second = (block.record for block in channel.blocks())
    proof = anchors(tmp_path)[0]
    with pytest.raises(Unverified, match="another block"):
        check_anchor(proof, second, TRUST)
    with pytest.raises(Unverified, match="no enclave vouches"):
        check_anchor(proof, first, replace(TRUST, roots=(), evidence=None))
    with pytest.raises(Unverified, match="not proved"):
        check_anchor(proof, first, replace(TRUST, block_signers=(ADA.public,)))
    with pytest.raises(Unverified):
        check_anchor(replace(proof, index=proof.index + 1), first, TRUST)


def test_anchor_binds_its_evidence(tmp_path):
    """Evidence about another block does not serve."""
    bridged(tmp_path, [1])
    with open_channel(tmp_path / "inside", "pay") as channel:
        (record,) = (block.record for block in channel.blocks())
    forged = anchor_envelope(
        ADA,
        record,
        lambda _data: attest(bytes(64)),
        timestamp="2024-11-01T12:00:00Z",
        protocol_version="1.0.0",
    )
    proof = replace(anchors(tmp_path)[0], envelope=forged, claimed_id=forged.hex_id)
    with pytest.raises(Unverified):
        check_anchor(proof, record, TRUST)


def test_bridge_from_the_command_line(ropewalk, tmp_path):
    script = tmp_path / "attest.py"
    script.write_text(
        "import json, sys\nfrom tests.unit.ledger.test_quarantine import attest\n"
        "print(json.dumps(attest(bytes.fromhex(sys.stdin.read()))))\n"
    )
    assert ropewalk("key", "new", "box", "--alg", "xchacha20poly1305").code == 0
    assert ropewalk("ledger", "create", "--channel", "pay").code == 0
    offer = json.loads(ropewalk("ledger", "enclave", "offer", "--key", "box", "--enclave-ref", "pay-1").out)
    public = bytes.fromhex(offer["enclave_bridge"]["public_key"])
    sealed = seal_envelope(internal(1), "pay", EnclaveOffer("pay-1", public))
    Path("sealed.jsonl").write_bytes(sealed.to_bytes() + b"\n")

    async def main() -> tuple[Answer, Answer]:
        async with served(tmp_path / "outside") as server:
            done = await asyncio.to_thread(
                ropewalk, "ledger", "enclave", "bridge", "--inbox", "pay", "--key", "box", "--enclave-ref",
                "pay-1", "--file", "sealed.jsonl", "--public", server.url, "--public-channel", "audit",
                "--attest-command", f"env PYTHONPATH={ROOT} {sys.executable} {script}",
            )  # fmt: skip
            return done, await asyncio.to_thread(
                ropewalk, "ledger", "prove", internal(1).hex_id, "-o", "inner.json"
            )

    done, proved = asyncio.run(main())
    assert done.code == 0, done.err
    assert "1 blocks anchored in audit" in done.out and proved.code == 0
    Path("anchor.json").write_bytes(anchors(tmp_path)[0].to_bytes())
    Path("trust.json").write_bytes(TRUST.to_bytes())
    checked = ropewalk(
        "ledger",
        "enclave",
        "check-anchor",
        "--anchor",
        "anchor.json",
        "--block",
        "inner.json",
        "--trust",
        "trust.json",
    )
    # The certificates of this test have ended; the block is the right one.
    assert checked.code == 5 and "CN=enclave is not valid at" in checked.err
