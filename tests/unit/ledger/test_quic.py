"""A channel over QUIC: streams by correlation id, certificates checked by us, flow control that holds."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aioquic.asyncio.client import connect
from aioquic.quic.connection import QuicConnection
from tests.unit.ledger.certifying import files_of
from tests.unit.ledger.making import NODE, command, observed
from tests.unit.ledger.test_remote import served
from tests.waiting import soon

from ropewalk.disk.certificate_authority import CertificateAuthority, init_authority
from ropewalk.errors import (
    InvalidJson,
    Replayed,
    Unauthenticated,
    Unavailable,
)
from ropewalk.ledger.channel.channel import open_channel, verify_blocks
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.proof.proof import parse_proof
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.remote.client import LedgerClient
from ropewalk.ledger.remote.messages import PROTOCOL, RemoteMessage
from ropewalk.ledger.remote.replica import pull_channel
from ropewalk.ledger.remote.sync_client import connect_channel
from ropewalk.ledger.remote.transports.quic_client import QuicSession
from ropewalk.net.admission import ConnectionLimits
from ropewalk.net.frames import frame, pack_parts
from ropewalk.net.quic import settings
from ropewalk.net.quic.client import connect_quic
from ropewalk.net.quic.link import EXCESSIVE_LOAD, STREAM_BYTES_MAX, STREAMS_MAX, QuicPipe
from ropewalk.net.quic.listener import QuicListener
from ropewalk.net.quic.settings import configuration
from ropewalk.net.tls import TlsFiles

pytestmark = pytest.mark.timeout(300)
ANY = ("127.0.0.1", 0)
NOW = datetime.now(UTC)


def with_quic(home: Path, pki: CertificateAuthority, act: Any, **options: Any) -> Any:
    async def main() -> Any:
        files = files_of(pki.folder / "server")
        async with (
            served(home, port=None, files=files, quic=ANY, **options) as server,
            LedgerClient(server.url, "audit", files=files_of(pki.folder / "ada")) as remote,
        ):
            return await act(remote)

    return asyncio.run(main())


def test_quic_receipts_and_refusals(tmp_path, pki):
    good = [observed(i).raw for i in range(300)]
    mixed = [good[0], b"{", command("c").raw, command("c", payload=2).raw, command("d").raw]

    async def act(remote: LedgerClient) -> Any:
        first, second = await asyncio.gather(remote.submit_many(good), remote.submit_many(mixed))
        proof = parse_proof(await remote.prove(observed(7).id))
        return first, second, proof, [lines async for _, lines in remote.blocks()]

    first, second, proof, blocks = with_quic(tmp_path, pki, act)
    assert all(isinstance(each, LedgerReceipt) for each in first) and proof.envelope.raw == good[7]
    kinds = [LedgerReceipt, InvalidJson, LedgerReceipt, Replayed, LedgerReceipt]
    assert [type(each) for each in second] == kinds
    with open_channel(tmp_path, "audit") as channel:
        assert blocks == [lines for _, lines in channel.lines()]
    assert verify_blocks(tmp_path, "audit", deep=True).ok


def test_quic_stream_for_each_correlation_id(tmp_path, pki):
    async def act(remote: LedgerClient) -> Any:
        calls = [command(f"c{i % 40}", payload=i).raw for i in range(120)]
        outcomes = await remote.submit_many([*calls, observed(1).raw])
        session = remote._newest()
        assert isinstance(session, QuicSession)
        ids = {lane.session.carrier.pipe.stream_id for lane in session._lanes.values()}  # type: ignore[attr-defined]
        return outcomes, len(session._lanes), ids

    outcomes, lanes, ids = with_quic(tmp_path, pki, act)
    # The first of each id is a receipt, later ones are the replay of rule 8: order held within each stream.
    assert [type(each) for each in outcomes[:40]] == [LedgerReceipt] * 40
    assert all(isinstance(each, Replayed) for each in outcomes[40:120])
    assert lanes <= STREAMS_MAX and len(ids) == lanes and max(ids) >= 4 * 40


def test_quic_two_correlation_ids_on_one_stream(tmp_path, pki):
    async def act(remote: LedgerClient) -> Any:
        session = remote._newest()
        assert isinstance(session, QuicSession)
        pipe = session.carrier.link.open_stream()
        message = RemoteMessage("append", 1, {}, (command("a").raw, command("b").raw))
        await pipe.send(frame(pack_parts(message.parts_out())))
        heard = b""
        while data := await pipe.receive():
            heard += data
        return heard, (await remote.submit(observed(1).raw)).height

    heard, height = with_quic(tmp_path, pki, act)
    assert b"two correlation ids on one stream" in heard and height == 0


def bad_certificate(kind: str, pki: CertificateAuthority, folder: Path) -> TlsFiles:
    good = files_of(pki.folder / "ada")
    if kind == "self_signed":
        other = init_authority(folder / "self", "ada", NOW)
        return TlsFiles(other.folder / "ca.pem", other.folder / "ca.key", good.roots)
    if kind == "foreign":
        other = init_authority(folder / "foreign", "ropewalk", NOW)
        other.issue("ada", [])
        own = other.folder / "ada"
    elif kind == "expired":
        CertificateAuthority(pki.folder, NOW - timedelta(days=20)).issue("late", [], 1)
        CertificateAuthority(pki.folder, NOW).issue("ada", [])  # a list that is valid now
        own = pki.folder / "late"
    elif kind == "wrong_purpose":
        own = pki.folder / "server"
    else:
        CertificateAuthority(pki.folder, NOW).issue("eve", [])
        own = pki.folder / "eve"
        CertificateAuthority(pki.folder, NOW).revoke("eve")
    return TlsFiles(own / "cert.pem", own / "key.pem", good.roots)


KINDS = ["self_signed", "foreign", "expired", "wrong_purpose", "revoked"]


@pytest.mark.parametrize("transport", ["quic", "grpc", "tls"])
@pytest.mark.parametrize("kind", KINDS)
def test_bad_client_certificate_is_refused(tmp_path, pki, kind, transport):
    async def main() -> None:
        own = files_of(pki.folder / "server")
        where: dict[str, Any] = {
            "quic": {"quic": ANY, "port": None},
            "grpc": {"grpc": ANY, "port": None},
        }.get(transport, {})
        async with served(tmp_path, files=own, **where) as server:
            bad = bad_certificate(kind, pki, tmp_path)
            with pytest.raises((Unauthenticated, Unavailable)):
                await LedgerClient(server.url, "audit", files=bad, connect_s=5).__aenter__()
            async with LedgerClient(server.url, "audit", files=files_of(pki.folder / "ada")) as remote:
                assert (await remote.head())["envelopes"] == 0

    asyncio.run(main())


def test_quic_without_certificate_gets_no_byte(tmp_path, pki, monkeypatch):
    """aioquic itself lets such a client through: the check is ours."""
    from ropewalk.net.quic import client as quic_client

    def without(*arguments: Any, client: bool) -> Any:
        made = configuration(*arguments, client=client)
        if client:
            made.certificate = made.private_key = None
        return made

    async def main() -> None:
        async with served(tmp_path, port=None, files=files_of(pki.folder / "server"), quic=ANY) as server:
            monkeypatch.setattr(quic_client, "configuration", without)
            host, port = "127.0.0.1", int(server.url.rpartition(":")[2])
            link, close = await connect_quic(host, port, files_of(pki.folder / "ada"), PROTOCOL, timeout_s=10)
            pipe = link.open_stream()
            await pipe.send(frame(b"x"))
            with pytest.raises(Unauthenticated, match="shown no certificate"):
                await pipe.receive()
            await close()
            assert not server.sessions

    asyncio.run(main())


def test_quic_server_certificate_must_be_for_the_host(tmp_path, pki):
    pki.issue("elsewhere", ["ledger.example"])

    async def main() -> None:
        async with served(tmp_path, port=None, files=files_of(pki.folder / "elsewhere"), quic=ANY) as server:
            with pytest.raises((Unavailable, Unauthenticated)):
                await LedgerClient(
                    server.url, "audit", files=files_of(pki.folder / "ada"), connect_s=5
                ).__aenter__()

    asyncio.run(main())


def test_quic_peer_that_is_not_read_must_wait(tmp_path, pki):
    """Bytes that the server does not read are bounded by the window it grants."""

    async def main() -> None:
        async with served(tmp_path, port=None, files=files_of(pki.folder / "server"), quic=ANY) as server:
            held: list[QuicPipe] = []
            listener = server._listening["quic"]._listener  # type: ignore[attr-defined]
            listener._opened = lambda _link, pipe: held.append(pipe)
            port = int(server.url.rpartition(":")[2])
            link, close = await connect_quic(
                "127.0.0.1", port, files_of(pki.folder / "ada"), PROTOCOL, timeout_s=10
            )
            pipe = link.open_stream()
            sending = asyncio.create_task(_flood(pipe))
            for windows in (3, 0):  # once it is read, more comes; and then no more than at first
                await soon(lambda: bool(held) and len(held[0]._received) >= STREAM_BYTES_MAX // 2)
                for _ in range(20):
                    await asyncio.sleep(0.01)
                    assert len(held[0]._received) <= STREAM_BYTES_MAX
                assert not sending.done()
                received = 0
                while received < windows * STREAM_BYTES_MAX:
                    received += len(await held[0].receive())
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await close()

    asyncio.run(main())


async def _flood(pipe: QuicPipe) -> None:
    for _ in range(200):
        await pipe.send(bytes(32 << 10))


def test_quic_streams_before_the_session_are_rejected(tmp_path, pki):
    async def main() -> None:
        async with served(tmp_path, port=None, files=files_of(pki.folder / "server"), quic=ANY) as server:
            port = int(server.url.rpartition(":")[2])
            link, close = await connect_quic(
                "127.0.0.1", port, files_of(pki.folder / "ada"), PROTOCOL, timeout_s=10
            )
            first, second = link.open_stream(), link.open_stream()
            await second.send(frame(b"x"))
            with pytest.raises(Unavailable, match="did not take the request"):
                await second.receive()
            assert first.error is None
            await close()

    asyncio.run(main())


def test_quic_connection_moves_with_its_client(tmp_path, pki):
    """A client whose address changes goes on with the same connection and negotiates nothing again."""

    async def act(remote: LedgerClient) -> None:
        before = await remote.submit(observed(1).raw)
        session = remote._session
        assert isinstance(session, QuicSession)
        link = session.carrier.link
        old = link._transport
        assert old is not None
        ports = {old.get_extra_info("sockname")[1]}
        family = old.get_extra_info("sockname")[0]
        loop = asyncio.get_running_loop()
        moved, _ = await loop.create_datagram_endpoint(lambda: link, local_addr=(family, 0))
        old.abort()  # the old address is gone: nothing can be sent from it or arrive there
        ports.add(moved.get_extra_info("sockname")[1])
        assert len(ports) == 2
        after = await remote.submit(observed(2).raw)
        assert (before.height, after.height) == (0, 1)
        assert [height for height, _ in await remote.read_blocks(0)] == [0, 1]
        assert remote.connections == 1 and remote._session is session
        await remote.__aexit__(None, None, None)
        moved.close()

    with_quic(tmp_path, pki, act)


def test_quic_client_that_closes_leaves_at_once(pki):
    """Its socket is closed with it, so nothing is gained by the closing state of RFC 9000 §10.2; the server is told."""

    async def main() -> None:
        left: list[str] = []
        own = files_of(pki.folder / "server")
        listener = QuicListener(
            lambda _link, _pipe: None, own, ConnectionLimits(4), lambda who, _why: left.append(who)
        )
        port = (await listener.open(*ANY, own, PROTOCOL)).port
        link, close = await connect_quic(ANY[0], port, files_of(pki.folder / "ada"), PROTOCOL, timeout_s=10)
        await close()
        assert link._transport is not None and link._transport.is_closing()
        assert link.refusal is None  # the state has not ended, and was not waited for
        await soon(lambda: len(left) == 1)
        await listener.close()

    asyncio.run(main())


def test_quic_server_issues_no_session_tickets(tmp_path, pki):
    """Without a ticket there is no resumption and no 0-RTT: each connection shows its certificate."""
    tickets: list[Any] = []

    async def main() -> None:
        async with served(tmp_path, port=None, files=files_of(pki.folder / "server"), quic=ANY) as server:
            port = int(server.url.rpartition(":")[2])
            settings = configuration(files_of(pki.folder / "ada"), PROTOCOL, ANY[0], client=True)
            async with connect(
                ANY[0], port, configuration=settings, session_ticket_handler=tickets.append
            ) as link:
                await link.ping()
                await link.ping()

    asyncio.run(main())
    assert tickets == []


def test_quic_pull_and_restart(tmp_path, pki):
    """A copy over QUIC; a client survives that the server is restarted at the same port."""
    files, own = files_of(pki.folder / "ada"), files_of(pki.folder / "server")

    async def main() -> None:
        async with served(tmp_path / "a", port=None, files=own, quic=ANY) as server:
            port = int(server.url.rpartition(":")[2])
            async with LedgerClient(server.url, "audit", files=files) as remote:
                assert remote.agreement.transport == "quic" and remote.agreement.encrypted
                await remote.submit_many([observed(i).raw for i in range(30)])
                await server.__aexit__(None, None, None)
                async with served(tmp_path / "a", port=None, files=own, quic=("127.0.0.1", port)) as again:
                    assert isinstance(await remote.submit(observed(30).raw), LedgerReceipt)

                    def pull() -> Any:
                        with connect_channel(again.url, "audit", files=files) as copied:
                            trust = Trust((NODE.public,), ())
                            return pull_channel(copied, tmp_path / "b", "audit", trust=trust)

                    assert (await asyncio.to_thread(pull)).envelopes == 31

    asyncio.run(main())
    assert verify_blocks(tmp_path / "b", "audit", deep=True).ok


def test_quic_overload_is_code_0x107(tmp_path, pki):
    async def main() -> None:
        own, files = files_of(pki.folder / "server"), files_of(pki.folder / "ada")
        async with (
            served(tmp_path, port=None, files=own, quic=ANY, limits=ConnectionLimits(1)) as server,
            LedgerClient(server.url, "audit", files=files) as remote,
        ):
            port = int(server.url.rpartition(":")[2])
            link, close = await connect_quic("127.0.0.1", port, files, PROTOCOL, timeout_s=10)
            with pytest.raises(Unavailable, match="1 connections are open already"):
                await link.open_stream().receive()
            assert link._quic._close_event is not None
            assert link._quic._close_event.error_code == EXCESSIVE_LOAD
            await close()
            assert (await remote.head())["envelopes"] == 0

    asyncio.run(main())


def test_quic_speaks_ea_ledger_1_only(tmp_path, pki):
    async def main() -> None:
        own, files = files_of(pki.folder / "server"), files_of(pki.folder / "ada")
        async with served(tmp_path, port=None, files=own, quic=ANY) as server:
            port = int(server.url.rpartition(":")[2])
            with pytest.raises(Unauthenticated):
                await connect_quic("127.0.0.1", port, files, "h3", timeout_s=10)
            link, close = await connect_quic("127.0.0.1", port, files, PROTOCOL, timeout_s=10)
            assert link._quic.tls.alpn_negotiated == "ea-ledger/1"
            await close()

    asyncio.run(main())


def test_quic_datagrams_fit_every_path(tmp_path, pki, monkeypatch):
    """Between machines no datagram of a session has more than 1,200 bytes: handshake, bulk, and both directions."""
    sizes: list[int] = []
    send = QuicConnection.datagrams_to_send

    def record(connection: QuicConnection, now: float) -> Any:
        found = send(connection, now)
        sizes.extend(len(data) for data, _ in found)
        return found

    async def act(remote: LedgerClient) -> int:
        receipts = await remote.submit_many(
            [observed(i, payload={"n": i, "text": "x" * 100_000}).raw for i in range(8)]
        )
        assert all(isinstance(each, LedgerReceipt) for each in receipts)
        return sum(len(raw) for _, lines in await remote.read_blocks(0) for raw in lines)

    monkeypatch.setattr(QuicConnection, "datagrams_to_send", record)
    far = configuration(files_of(pki.folder / "ada"), PROTOCOL, "ledger.example", client=True)
    monkeypatch.setattr(settings, "LOOPBACK_DATAGRAM_BYTES", far.max_datagram_size)  # as between machines
    assert with_quic(tmp_path, pki, act) > 800_000
    assert len(sizes) > 1_000 and max(sizes) == 1_200


def test_quic_lost_connection_with_more_ids_than_streams(tmp_path, pki):
    """Requests that wait for a stream of the lost connection go over the next one; each is sealed once."""

    async def main() -> list[Any]:
        own, files = files_of(pki.folder / "server"), files_of(pki.folder / "ada")
        async with (
            served(tmp_path, port=None, files=own, quic=ANY) as server,
            LedgerClient(server.url, "audit", files=files) as remote,
        ):
            asked = [asyncio.create_task(remote.submit(command(f"c{i}").raw)) for i in range(8 * STREAMS_MAX)]
            await soon(lambda: remote._newest().number > STREAMS_MAX - 4)  # it waits for a stream
            for link in list(server._listening["quic"]._listener._links):  # type: ignore[attr-defined]
                link.close_with(EXCESSIVE_LOAD, Unavailable("dropped"))
            return await asyncio.wait_for(asyncio.gather(*asked), 60)

    assert all(isinstance(each, LedgerReceipt) for each in asyncio.run(main()))
    with open_channel(tmp_path, "audit") as channel:
        assert channel.head().envelopes == 8 * STREAMS_MAX
