"""A subscriber written in JavaScript, with nothing of ours: S2's own frames are enough to get every message."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.interop.test_gossip_peers import NODE, package, pytestmark  # noqa: F401 - a fixture, and why it may be skipped
from tests.unit.stream.conftest import log, publish  # noqa: F401 - a fixture

from ropewalk.stream.serve.repository_stream import RepositoryStream

COUNT = 2_200  # more than twice what may be outstanding


def test_a_javascript_client_gets_every_message_once_and_in_order(log, package):  # noqa: F811
    async def run() -> tuple[dict[str, Any], int]:
        async with RepositoryStream(log) as stream:
            assert NODE is not None
            process = await asyncio.create_subprocess_exec(
                NODE, "subscriber.mjs", stream.url, str(COUNT), cwd=package, stdout=asyncio.subprocess.PIPE
            )
            try:
                assert process.stdout is not None
                assert json.loads(await process.stdout.readline()) == {"ready": True}
                publish(log, "jobs/pending", *({"n": n} for n in range(COUNT)))
                answer = json.loads(await process.stdout.readline())
                return answer, await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()

    answer, code = asyncio.run(asyncio.wait_for(run(), 300))
    assert code == 0
    assert answer["got"] == list(range(COUNT))
    assert answer["most"] <= 1_000
