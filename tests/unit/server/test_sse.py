"""Server-Sent Events to many clients: a burst to all of them leaves time for others."""

from __future__ import annotations

import asyncio

from tests.asgi import served
from tests.waiting import soon

from ropewalk.server.auth.auth_file import credentials_of
from ropewalk.server.auth.rights import LOCAL
from ropewalk.server.stream_host import EventStream
from ropewalk.stream.core.frames import Sub
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
