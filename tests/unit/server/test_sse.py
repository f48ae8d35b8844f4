"""Server-Sent Events: a burst to many clients leaves time for others, and a client that leaves is gone at once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tests.asgi import served
from tests.waiting import soon

from ropewalk.disk.certificate_authority import init_authority
from ropewalk.server.auth.auth_file import credentials_of
from ropewalk.server.auth.rights import LOCAL
from ropewalk.server.settings import TlsPaths
from ropewalk.server.stream_host import SSE_WAITING_MAX, EventStream
from ropewalk.stream.core.frames import Ping, Sub, encode
from ropewalk.stream.serve.server import WRITERS_PER_TURN

EVENT = {"type": "t", "payload": {"text": "x" * 600}}


def test_burst_to_many_readers_is_cut_into_turns(tmp_path):
    """In one turn of the loop only a few clients get frames, so that a request is not behind all of them."""

    async def main() -> None:
        async with served(tmp_path) as client:
            stream = client.node.stream
            readers = [EventStream(str(n), Sub(topics=("shiplog/x",), since_seq=None)) for n in range(60)]
            tasks = [
                asyncio.create_task(stream.serve_client(each, LOCAL, credentials_of([], None)))
                for each in readers
            ]
            await soon(lambda: len(stream.connections) == 60)
            await soon(lambda: all(each.chunks.qsize() == 1 for each in readers))  # the ack
            assert (await client("POST", "/shiplog/x/events", [EVENT] * 20)).status == 201
            most, before = 0, 60
            while before < 120:
                await asyncio.sleep(0)
                now = sum(each.chunks.qsize() for each in readers)
                most, before = max(most, now - before), now
            assert 0 < most <= WRITERS_PER_TURN
            chunks = [[each.chunks.get_nowait() or b"" for _ in range(2)][1] for each in readers]
            assert {*chunks} == {chunks[0]} and chunks[0].count(b"\nevent: bus") == 20
            for each in readers:
                each.leave()
            await asyncio.gather(*tasks)

    asyncio.run(main())


def test_leaving_frees_a_writer_that_waits():
    """A client that has taken nothing and leaves must not keep its connection until the writer gives up."""

    async def main() -> None:
        events = EventStream("slow", Sub(topics=("x",)))
        for _ in range(SSE_WAITING_MAX):
            assert await events.send([encode(Ping())])
        waiting = asyncio.create_task(events.send([encode(Ping())]))
        await asyncio.sleep(0)
        events.leave()
        async with asyncio.timeout(5):
            assert await waiting is False
        chunks = [events.chunks.get_nowait() for _ in range(events.chunks.qsize())]
        assert None in chunks

    asyncio.run(main())


def test_revoked_certificate_ends_the_stream(tmp_path):
    """A certificate revocation list that is replaced closes streams as a changed auth file does."""

    async def main() -> None:
        authority = init_authority(tmp_path / "pki", "test", datetime.now(UTC))
        tls = {
            each: authority.issue(each, hosts).folder
            for each, hosts in (("server", ["localhost"]), ("ada", []))
        }
        files = TlsPaths(
            tls["server"] / "cert.pem",
            tls["server"] / "key.pem",
            tmp_path / "pki/ca.pem",
            tmp_path / "pki/crl.pem",
        )
        shown = x509.load_pem_x509_certificate((tls["ada"] / "cert.pem").read_bytes())
        async with served(tmp_path, tls=files) as client:
            stream, events = client.node.stream, EventStream("ada", Sub(topics=("x",)))
            credentials = credentials_of([], shown.public_bytes(Encoding.DER))
            serving = asyncio.create_task(stream.serve_client(events, LOCAL, credentials))
            await soon(lambda: len(stream.connections) == 1)
            stream.recheck()
            await asyncio.sleep(0.05)
            assert not serving.done()
            authority.revoke("ada")
            async with asyncio.timeout(10):
                await serving
            assert "revoked" in events.ended

    asyncio.run(main())
