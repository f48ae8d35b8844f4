"""Sealed answers, drift and quarantine (S4 §5, §14): stale evidence, another policy and revocation end them."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tests.unit.ledger.attesting import PCR0, Authority
from tests.unit.ledger.attesting import nitro_document as document_of
from tests.unit.ledger.certifying import files_of
from tests.unit.ledger.making import NODE, NOON_NS, command, observed
from tests.unit.ledger.test_grpc import grpc_channel
from tests.unit.ledger.test_remote import served
from tests.unit.ledger.test_transports import options_of
from tests.waiting import soon

from ropewalk.errors import NegotiateAgain, Quarantined, Unauthenticated, Unavailable, Unverified
from ropewalk.kernel import jcs
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.evidence.allowed import EvidenceAllowList
from ropewalk.ledger.evidence.binding import wrap_report
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.remote.client import LedgerClient
from ropewalk.ledger.remote.conversation import Peer
from ropewalk.ledger.remote.proto import ledger_pb2 as pb
from ropewalk.ledger.remote.quarantine import PEERS_MAX, Quarantine
from ropewalk.ledger.remote.transports.grpc_messages import calls
from ropewalk.ledger.remote.transports.quic_client import QuicCarrier
from ropewalk.ledger.rules.policy import STRICT
from ropewalk.net.quic.link import STREAMS_MAX

pytestmark = pytest.mark.timeout(300)
ROOT = Authority("root")
LOWER = Authority("lower", ROOT, path_length=0)
LEAF = Authority("enclave", LOWER, ca=False)
TRUST = Trust((NODE.public,), (), roots=(ROOT.pem,), evidence=EvidenceAllowList(pcrs={0: (PCR0.hex(),)}))
HOUR = 3_600 * 10**9


def attest(report_data: bytes) -> dict[str, jcs.Json]:
    """What the hardware says."""
    document = document_of(LEAF, [ROOT, LOWER], user_data=report_data)
    return wrap_report("tee.report", {"tee_type": "aws_nitro", "document": b64encode(document).decode()})


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = NOON_NS

    def __call__(self) -> int:
        return self.now


def test_answer_sealed_by_hardware_is_verified(tmp_path):
    async def main() -> None:
        clock = Clock()
        options: dict[str, Any] = {"trust": TRUST, "attested": True, "now_ns": clock}
        async with (
            served(tmp_path / "a", attest=attest, now_ns=clock) as server,
            LedgerClient(server.url, "audit", **options) as remote,
        ):
            assert (await remote.head())["envelopes"] == 0
        async with served(tmp_path / "b", now_ns=clock) as server:
            with pytest.raises(Unverified, match="not sealed"):
                await LedgerClient(server.url, "audit", **options).__aenter__()
        other = lambda _data: attest(bytes(64))  # noqa: E731 - about another answer
        async with served(tmp_path / "c", attest=other, now_ns=clock) as server:
            with pytest.raises(Unverified, match="not sealed"):
                await LedgerClient(server.url, "audit", trust=TRUST, now_ns=clock).__aenter__()

    asyncio.run(main())


def test_stale_peer_is_quarantined_until_fresh(tmp_path):
    async def main() -> None:
        clock = Clock()
        quarantine = Quarantine(TRUST, freshness_s=3_600)
        fresh = True

        def peer_attest(data: bytes) -> dict[str, jcs.Json]:
            return attest(data if fresh else bytes(64))

        async with (
            served(tmp_path, quarantine=quarantine, now_ns=clock) as server,
            LedgerClient(server.url, "audit", key=NODE, attest=peer_attest, now_ns=clock) as drifting,
            LedgerClient(server.url, "audit", attest=attest, now_ns=clock) as healthy,
        ):
            await drifting.submit(observed(1).raw)
            await healthy.submit(observed(2).raw)
            fresh = False
            clock.now += 2 * HOUR
            with pytest.raises(Quarantined, match="is quarantined"):
                await drifting.submit(observed(3).raw)
            with pytest.raises(Quarantined):  # replication is held back, too
                await drifting.read_blocks(0)
            assert set(quarantine.peers) == {NODE.public.did()}
            held = quarantine.peers[NODE.public.did()]
            assert (held.channel, held.since_ns) == ("audit", clock.now)
            assert (await healthy.submit(observed(4).raw)).index == 0  # negotiated again by itself
            assert healthy.connections == 2
            fresh = True
            await drifting.submit(observed(5).raw)
            assert not quarantine.peers

    asyncio.run(main())


def test_peer_without_evidence_gets_no_session(tmp_path):
    async def main() -> None:
        clock = Clock()
        async with served(tmp_path, quarantine=Quarantine(TRUST), now_ns=clock) as server:
            with pytest.raises(Quarantined, match="no report of hardware"):
                await LedgerClient(server.url, "audit", now_ns=clock).__aenter__()

    asyncio.run(main())


def test_changed_policy_ends_sessions(tmp_path):
    """A session under an old policy is negotiated again; a peer that goes by the old one is refused."""

    async def main() -> None:
        clock = Clock()
        old, new = STRICT, replace(STRICT, capability_matrix={"versions": ["1.0.x", "1.1.x"]})
        trust = replace(TRUST, roots=(), evidence=None, policy_hash=old.hash)
        async with (
            served(tmp_path, policy=old, now_ns=clock) as server,
            LedgerClient(server.url, "audit", trust=trust, now_ns=clock) as pinned,
            LedgerClient(server.url, "audit", now_ns=clock) as other,
        ):
            await pinned.head()
            await other.head()
            folder = tmp_path / "ledger" / "audit"
            settings = jcs.parse((folder / "channel.json").read_bytes())
            assert isinstance(settings, dict)
            (folder / "policy.json").write_bytes(new.to_bytes())
            (folder / "channel.json").write_bytes(jcs.encode({**settings, "policy_hash": new.hash.hex()}))
            clock.now += HOUR
            with pytest.raises(Quarantined, match="its policy is"):
                await pinned.head()
            assert (await other.head())["envelopes"] == 0 and other.connections == 2
            assert len(server.quarantine.peers) == 1

    asyncio.run(main())


def test_quarantine_forgets_the_oldest():
    quarantine = Quarantine()
    for number in range(PEERS_MAX + 5):
        quarantine.put(f"did:{number}", "stale", "audit", number)
    assert len(quarantine.peers) == PEERS_MAX and "did:4" not in quarantine.peers


def test_attest_command_gives_evidence(tmp_path):
    from ropewalk.cli.ledger.remote.remote import attest_by
    from ropewalk.errors import Unavailable

    script = tmp_path / "attest.sh"
    script.write_text('#!/bin/sh\nread data; printf \'{"format":"tee.report","seen":"%s"}\' "$data"\n')
    made = attest_by(f"sh {script}")
    assert made is not None and made(b"\1\2")["seen"] == "0102"
    for bad in ("false", "sh -c 'echo no'", "sh -c 'echo []'", "/nowhere"):
        failing = attest_by(bad)
        assert failing is not None
        with pytest.raises(Unavailable):
            failing(b"")


@pytest.mark.parametrize("transport", ["tls", "grpc", "quic"])
def test_revoked_peer_is_quarantined_until_a_new_certificate(tmp_path, pki, transport):
    """Its session ends with NegotiateAgain, new ones are refused, replication is held back; other peers go on."""
    pki.issue("bob", [])
    bob, own = files_of(pki.folder / "bob"), files_of(pki.folder / "server")

    async def main() -> None:
        async with (
            served(tmp_path, **options_of(transport, own)) as server,
            LedgerClient(server.url, "audit", files=bob, retry_s=0) as revoked,
            LedgerClient(server.url, "audit", files=files_of(pki.folder / "ada")) as healthy,
        ):
            assert (await revoked.submit(observed(1).raw)).height == 0
            await healthy.head()
            pki.revoke("bob")
            with pytest.raises(NegotiateAgain, match="CN=bob was revoked"):
                await revoked.submit(observed(2).raw)
            held = server.quarantine.peers["CN=bob"]
            assert held.channel == "audit" and "revoked" in held.reason
            for ask in (revoked.head, lambda: revoked.read_blocks(0)):
                with pytest.raises(Unauthenticated, match="revoked") as refused:  # a new session
                    await ask()
                assert "certificate" in refused.value.advice_now
            with pytest.raises(Unauthenticated, match="revoked"):
                await LedgerClient(server.url, "audit", files=bob).__aenter__()
            assert (await healthy.submit(observed(3).raw)).height == 1 and healthy.connections == 1
            assert set(server.quarantine.peers) == {"CN=bob"}
            pki.issue("bob", [])  # into the same files, which the client reads when it connects
            assert (await revoked.submit(observed(4).raw)).height == 2
            assert [height for height, _ in await revoked.read_blocks(0)] == [0, 1, 2]
            assert not server.quarantine.peers

    asyncio.run(main())


def test_new_certificate_ends_the_quarantine_without_a_negotiation(tmp_path, pki):
    """Clients generated from the .proto may begin with defaults."""
    pki.issue("bob", [])
    bob, own = files_of(pki.folder / "bob"), files_of(pki.folder / "server")
    asked = pb.HeadRequest(session=pb.Session(channel="audit"))

    async def main() -> None:
        async with served(tmp_path, **options_of("grpc", own)) as server:
            async with grpc_channel(server.url, bob) as channel:
                await calls(channel)["Head"](asked)
                pki.revoke("bob")
                with pytest.raises(grpc.aio.AioRpcError, match="revoked"):
                    await calls(channel)["Head"](asked)
                assert set(server.quarantine.peers) == {"CN=bob"}
            pki.issue("bob", [])
            async with grpc_channel(server.url, bob) as channel:
                await calls(channel)["Head"](asked)
                assert not server.quarantine.peers

    asyncio.run(main())


def test_list_that_cannot_be_read_refuses_everyone(tmp_path, pki):
    """Also who showed no certificate; there is nobody to list then."""
    own = files_of(pki.folder / "server")
    lost = tmp_path / "crl.pem"
    assert own.crl is not None
    lost.write_bytes(own.crl.read_bytes())

    async def main() -> None:
        async with served(tmp_path / "a", **options_of("tls", replace(own, crl=lost))) as server:
            server.check_certificate(Peer("tcp"), "audit")
            lost.unlink()
            with pytest.raises(Unauthenticated, match="cannot be read"):
                server.check_certificate(Peer("tcp"), "audit")
            assert not server.quarantine.peers

    asyncio.run(main())


@pytest.mark.parametrize("transport", ["tls", "grpc", "quic"])
def test_session_with_a_revoked_server_ends(tmp_path, pki, transport):
    """The client is a peer, too: it sends nothing more to a server whose certificate was revoked."""
    pki.issue("carol", ["127.0.0.1"])
    files, own = files_of(pki.folder / "ada"), files_of(pki.folder / "carol")

    async def main() -> None:
        async with (
            served(tmp_path, **options_of(transport, own)) as server,
            LedgerClient(server.url, "audit", files=files, retry_s=0) as remote,
        ):
            assert (await remote.submit(observed(1).raw)).height == 0
            pki.revoke("carol")
            for _ in range(2):
                with pytest.raises((NegotiateAgain, Unauthenticated), match="CN=carol was revoked"):
                    await remote.submit(observed(2).raw)

    asyncio.run(main())
    with open_channel(tmp_path, "audit") as channel:
        assert channel.head().envelopes == 1


def test_revoked_peer_loses_its_quic_connection(tmp_path, pki, monkeypatch):
    """Streams of the connection that asked nothing end with the session, also if the client keeps it open."""
    pki.issue("bob", [])
    bob, own = files_of(pki.folder / "bob"), files_of(pki.folder / "server")

    async def main() -> None:
        async with (
            served(tmp_path, **options_of("quic", own)) as server,
            LedgerClient(server.url, "audit", files=bob, retry_s=0) as revoked,
        ):
            await revoked.submit_many([command(name).raw for name in "abc"])
            assert len(server.sessions) == 4
            pki.revoke("bob")
            carrier: Any = revoked._newest().carrier
            with monkeypatch.context() as patch:
                patch.setattr(QuicCarrier, "close", lambda _self: asyncio.sleep(0))
                with pytest.raises(NegotiateAgain):
                    await revoked.head()
                await soon(lambda: not server.sessions)
            await carrier.close()

    asyncio.run(main())


@pytest.mark.parametrize("transport", ["tls", "grpc", "quic"])
def test_revoked_peer_with_many_requests_is_told(tmp_path, pki, transport):
    """Also over QUIC with more correlation ids than streams: a request that waits for a stream is answered."""
    pki.issue("bob", [])
    bob, own = files_of(pki.folder / "bob"), files_of(pki.folder / "server")

    async def main() -> None:
        async with (
            served(tmp_path, **options_of(transport, own)) as server,
            LedgerClient(server.url, "audit", files=bob, retry_s=0) as revoked,
        ):
            await revoked.submit(observed(1).raw)
            pki.revoke("bob")
            asked = [revoked.submit(command(f"c{number}").raw) for number in range(2 * STREAMS_MAX)]
            async with asyncio.timeout(30):
                answers = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(each, Unavailable | Unauthenticated) for each in answers)
            assert any(isinstance(each, NegotiateAgain) for each in answers)

    asyncio.run(main())
    with open_channel(tmp_path, "audit") as channel:
        assert channel.head().envelopes == 1
