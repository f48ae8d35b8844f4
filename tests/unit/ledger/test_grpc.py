"""A channel over gRPC: the same receipts, refusals and rules as over frames, with mutual TLS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.unit.ledger.certifying import Authority
from tests.unit.ledger.making import NODE, command, observed
from tests.unit.ledger.test_remote import served

from ropewalk.errors import Denied, InvalidJson, NotFound, Replayed, RopewalkError, Unavailable, Usage
from ropewalk.ledger.channel.channel import open_channel, verify_blocks
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.proof.proof import parse_proof
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.remote.client import LedgerClient
from ropewalk.ledger.remote.proto import ledger_pb2 as pb
from ropewalk.ledger.remote.replica import pull_channel
from ropewalk.ledger.remote.sync_client import connect_channel
from ropewalk.ledger.remote.transports.grpc_messages import calls
from ropewalk.ledger.remote.transports.grpc_server import READS_EACH_MAX
from ropewalk.ledger.rules.policy import STRICT
from ropewalk.net.tls import TlsFiles

pytestmark = pytest.mark.timeout(300)
ANY = ("127.0.0.1", 0)


@asynccontextmanager
async def grpc_channel(url: str, files: TlsFiles) -> AsyncIterator[Any]:
    credentials = grpc.ssl_channel_credentials(
        files.roots.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    options = (("grpc.http2.bdp_probe", 0),)  # a window that does not grow, so that what is not read waits
    async with grpc.aio.secure_channel(url.removeprefix("grpc://"), credentials, options) as channel:
        yield channel


def with_grpc(home: Path, authority: Authority, act: Any, client: Any = None, **options: Any) -> Any:
    async def main() -> Any:
        files = authority.files("server")
        async with (
            served(home, port=None, files=files, grpc=ANY, **options) as server,
            LedgerClient(server.url, "audit", files=authority.files("client"), **(client or {})) as remote,
        ):
            return await act(remote)

    return asyncio.run(main())


def raw_calls(home: Path, authority: Authority, act: Any, **options: Any) -> Any:
    """Call the service as any client does that was generated from the .proto."""

    async def main() -> Any:
        files = authority.files("server")
        async with (
            served(home, port=None, files=files, grpc=ANY, **options) as server,
            grpc_channel(server.url, authority.files("client")) as channel,
        ):
            return await act(calls(channel), channel)

    return asyncio.run(main())


def test_grpc_receipts_and_refusals(tmp_path, authority):
    good = [observed(i).raw for i in range(600)]
    mixed = [good[0], b"{", command("c").raw, command("c", payload=2).raw]

    async def act(remote: LedgerClient) -> Any:
        first, second, head = await asyncio.gather(
            remote.submit_many(good), remote.submit_many(mixed), remote.head()
        )
        proof = parse_proof(await remote.prove(observed(7).id))
        blocks = [lines async for _, lines in remote.blocks()]
        with pytest.raises(NotFound):
            await remote.prove(bytes(32))
        assert (await remote.settings()).signer == NODE.public
        return first, second, head, proof, blocks

    first, second, _, proof, blocks = with_grpc(tmp_path, authority, act)
    assert all(isinstance(each, LedgerReceipt) for each in first) and proof.envelope.raw == good[7]
    assert [type(each) for each in second] == [LedgerReceipt, InvalidJson, LedgerReceipt, Replayed]
    assert second[0].replayed and second[0].height == first[0].height
    with open_channel(tmp_path, "audit") as channel:
        assert blocks == [lines for _, lines in channel.lines()]
    assert verify_blocks(tmp_path, "audit", deep=True).ok


def test_grpc_refusal_equals_local(tmp_path, authority):
    wrong = json.dumps({**observed(1).value, "payload": 0}).encode()

    async def act(remote: LedgerClient) -> Any:
        (outcome,) = await remote.submit_many([wrong])
        return outcome

    async def tcp() -> Any:
        async with served(tmp_path / "b") as server, LedgerClient(server.url, "audit") as remote:
            return (await remote.submit_many([wrong]))[0]

    over = with_grpc(tmp_path / "a", authority, act)
    assert isinstance(over, RopewalkError) and over.to_problem() == asyncio.run(tcp()).to_problem()


def test_grpc_append_without_negotiation(tmp_path, authority):
    async def act(call: Any, _channel: Any) -> Any:
        stream = call["Append"]()
        session = pb.Session(channel="audit")
        await stream.write(pb.AppendRequest(session=session, envelopes=[observed(0).raw, b"{"]))
        await stream.write(pb.AppendRequest(envelopes=[observed(1).raw]))
        await stream.done_writing()
        said = [each async for each in stream]
        head = await call["Head"](pb.HeadRequest(session=session))
        read = [each async for each in call["Read"](pb.ReadRequest(session=session))]
        return said, head, read

    said, head, read = raw_calls(tmp_path, authority, act)
    assert [each.request for each in said] == [1, 2] and head.envelopes == 2
    kinds = [each.WhichOneof("outcome") for response in said for each in response.outcomes]
    assert kinds == ["receipt", "problem", "receipt"]
    assert said[0].outcomes[1].problem.code == "InvalidJson"
    assert sum(len(each.lines) - 1 for each in read) == 2


@pytest.mark.parametrize(
    "options", [{"record": "audit"}, {"policy": replace(STRICT, capability_matrix={"versions": ["1.1.x"]})}]
)
def test_grpc_defaults_refused_where_pinned(tmp_path, authority, options):
    async def act(call: Any, _channel: Any) -> Any:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call["Head"](pb.HeadRequest(session=pb.Session(channel="audit")))
        return failed.value

    if "record" in options:
        from ropewalk.ledger.channel.settings import create_channel

        create_channel(tmp_path, "audit", "node", NODE.public)
    failed = raw_calls(tmp_path, authority, act, **options)
    assert failed.code() is grpc.StatusCode.PERMISSION_DENIED and "negotiated" in failed.details()


def test_grpc_error_is_a_rich_status(tmp_path, authority):
    async def act(call: Any, _channel: Any) -> Any:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call["Head"](pb.HeadRequest(session=pb.Session(channel="none")))
        return failed.value

    failed = raw_calls(tmp_path, authority, act)
    (raw,) = [value for name, value in failed.trailing_metadata() if name == "grpc-status-details-bin"]
    info = error_details_pb2.ErrorInfo()
    assert status_pb2.Status.FromString(raw).details[0].Unpack(info)
    assert failed.code() is grpc.StatusCode.NOT_FOUND
    assert (info.reason, info.domain) == ("NotFound", "ea.ledger.v1")
    assert json.loads(info.metadata["problem"])["code"] == "NotFound"


def test_grpc_session_is_bound_to_its_certificate(tmp_path, authority):
    async def main() -> None:
        async with (
            served(tmp_path, port=None, files=authority.files("server"), grpc=ANY) as server,
            LedgerClient(server.url, "audit", files=authority.files("client")) as remote,
            grpc_channel(server.url, authority.files("other")) as channel,
        ):
            name = remote._newest().carrier.name  # type: ignore[attr-defined]
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await calls(channel)["Head"](pb.HeadRequest(session=pb.Session(id=name)))
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
            assert (await remote.head())["envelopes"] == 0

    asyncio.run(main())


def test_grpc_health_reflection_and_deadline(tmp_path, authority):
    async def act(call: Any, channel: Any) -> Any:
        health = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="ea.ledger.v1.Ledger")
        )
        asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol="ea.ledger.v1.Ledger")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        found = [each async for each in stub.ServerReflectionInfo(iter([asked]))]
        stream = call["Append"](timeout=0.3)  # no request comes: the deadline ends it
        await stream.write(pb.AppendRequest(session=pb.Session(channel="audit"), envelopes=[observed(1).raw]))
        assert (await stream.read()).request == 1
        with pytest.raises(grpc.aio.AioRpcError) as late:
            while await stream.read() is not grpc.aio.EOF:
                pass
        again = call["Append"]()
        await again.write(pb.AppendRequest(session=pb.Session(channel="audit"), envelopes=[observed(2).raw]))
        await again.read()
        again.cancel()
        head = await call["Head"](pb.HeadRequest(session=pb.Session(channel="audit")))
        return health, found, late.value, head

    health, found, late, head = raw_calls(tmp_path, authority, act)
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert b"Negotiate" in found[0].file_descriptor_response.file_descriptor_proto[0]
    assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED and head.envelopes == 2


def test_grpc_carries_restricted_and_pulls(tmp_path, authority):
    async def main() -> None:
        async with served(tmp_path / "a", port=None, files=authority.files("server"), grpc=ANY) as server:
            files = authority.files("client")
            async with LedgerClient(server.url, "audit", files=files) as remote:
                assert remote.agreement.transport == "grpc" and remote.agreement.encrypted
                await remote.submit_many([observed(i).raw for i in range(30)])

            def pull() -> Any:
                with connect_channel(server.url, "audit", files=files) as remote:
                    return pull_channel(remote, tmp_path / "b", "audit", trust=Trust((NODE.public,), ()))

            pulled = await asyncio.to_thread(pull)
            assert pulled.envelopes == 30

    asyncio.run(main())
    assert verify_blocks(tmp_path / "b", "audit", deep=True).ok


def test_grpc_clients_end_quietly(tmp_path, authority, caplog):
    """gRPC has one queue for all loops: what a client leaves open is reported to its loop after that was closed."""
    files = authority.files("client")

    def use(url: str, number: int) -> None:
        for n in range(8):
            with connect_channel(url, "audit", files=files) as remote:
                remote.submit(observed(number * 100 + n).raw)

    async def main() -> None:
        async with served(tmp_path, port=None, files=authority.files("server"), grpc=ANY) as server:
            await asyncio.gather(*(asyncio.to_thread(use, server.url, number) for number in range(4)))

    asyncio.run(main())
    assert [each.exc_text or each.getMessage() for each in caplog.records if each.name == "asyncio"] == []


def test_grpc_needs_certificates(tmp_path, authority):
    with pytest.raises(Usage, match="mutual TLS"):
        asyncio.run(served(tmp_path, port=None, grpc=ANY).__aenter__())
    with pytest.raises(Usage, match="needs certificates"):
        LedgerClient("grpc://127.0.0.1:1", "audit")

    async def main() -> None:
        async with served(tmp_path, port=None, files=authority.files("server"), grpc=ANY) as server:
            stranger = Authority(tmp_path, "foreign").files("client", authority.roots)
            with pytest.raises(Unavailable):
                await LedgerClient(server.url, "audit", files=stranger, connect_s=3).__aenter__()

    asyncio.run(main())


def test_grpc_rights_hold_for_every_call(tmp_path, authority):
    allowed = {"read", "append", "streaming", "retry"}

    async def act(remote: LedgerClient) -> None:
        assert (await remote.submit(observed(1).raw)).height == 0
        allowed.discard("append")
        with pytest.raises(Denied, match="cannot be appended to"):
            await remote.submit(observed(2).raw)
        assert (await remote.head())["envelopes"] == 1

    with_grpc(tmp_path, authority, act, rights=lambda _peer, _channel: frozenset(allowed))


def test_proto_code_is_what_the_schema_gives():
    """`python docs/generate_proto.py` writes it."""
    import runpy

    root = Path(__file__).resolve().parents[3]
    found = runpy.run_path(str(root / "docs" / "generate_proto.py"))
    for name, text in found["generated"]().items():
        assert (found["FOLDER"] / name).read_text() == text, name


def test_grpc_unread_calls_give_way(tmp_path, authority, monkeypatch):
    """Unread calls keep the places of their own certificate alone, and end with a status once they are read."""
    monkeypatch.setattr("ropewalk.ledger.remote.transports.grpc_server.READS_MAX", READS_EACH_MAX)
    big = [observed(payload=f"{i}" * (700 << 10)).raw for i in range(10)]
    session = pb.Session(channel="audit")

    async def main() -> None:
        async with (
            served(tmp_path, port=None, files=authority.files("server"), grpc=ANY, idle_s=1.0) as server,
            grpc_channel(server.url, authority.files("client")) as slow,
            grpc_channel(server.url, authority.files("other")) as healthy,
        ):
            append = calls(healthy)["Append"]()
            for raw in big:
                await append.write(pb.AppendRequest(session=session, envelopes=[raw]))
                await append.read()
            read = calls(slow)["Read"]
            unread = [read(pb.ReadRequest(session=session)) for _ in range(READS_EACH_MAX)]
            for each in unread:
                await each.read()  # it has begun, and then nothing is read
            found = [each async for each in calls(healthy)["Read"](pb.ReadRequest(session=session))]
            assert len(found) == len(big)
            for call, why in [(read(pb.ReadRequest(session=session)), "too many reads")] + [
                (each, "has read nothing for 1 s") for each in unread
            ]:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    while await call.read() is not grpc.aio.EOF:
                        pass
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
                assert why in caught.value.details()

    asyncio.run(main())


def test_grpc_message_that_cannot_be_parsed_is_invalid(tmp_path, authority):
    """It is the fault of the client, also in the middle of an Append call; what came before it is answered."""

    async def act(_calls: Any, channel: Any) -> Any:
        call = channel.stream_stream("/ea.ledger.v1.Ledger/Append")()  # takes bytes as they are
        good = pb.AppendRequest(session=pb.Session(channel="audit"), envelopes=[observed(1).raw])
        await call.write(good.SerializeToString())
        await call.write(b"\xff" * 40)
        answer = pb.AppendResponse.FromString(await call.read())
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        return answer, failed.value.code()

    answer, code = raw_calls(tmp_path, authority, act)
    assert answer.outcomes[0].HasField("receipt")
    assert code == grpc.StatusCode.INVALID_ARGUMENT
