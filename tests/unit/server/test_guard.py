"""What the guard refuses before a route sees it, and what it counts."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from tests.asgi import served

MESSAGE = {"type": "t", "payload": {}}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_foreign_page_moves_no_checkpoint(tmp_path, site):
    async def main() -> None:
        async with served(tmp_path, origins=("https://desk.example",)) as client:
            await client("POST", "/messages?topic=jobs", MESSAGE)
            path = "/messages?topic=jobs&group=g"
            for mode in ("no-cors", "navigate"):
                sent = {"sec-fetch-site": site, "sec-fetch-mode": mode}
                answer = await client("GET", path, headers=sent)
                assert (answer.status, answer.code) == (403, "PolicyDenied")
            assert (await client("GET", "/consumers")).json == {"consumers": []}
            sent |= {"origin": "https://desk.example", "sec-fetch-mode": "cors"}
            assert (await client("GET", path, headers=sent)).status == 200

    asyncio.run(main())


def test_own_page_and_links_are_served(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as client:
            for site in ("same-origin", "none"):
                assert (await client("GET", "/consumers", headers={"sec-fetch-site": site})).status == 200
            link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
            assert (await client("GET", "//metrics", headers=link)).status == 200
            image = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
            assert (await client("GET", "//metrics", headers=image)).status == 403

    asyncio.run(main())


def test_metrics_bound_the_method_label(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as client:
            for n in range(5):
                await client(f"MADE-UP-{n}", "/consumers")
            text = (await client("GET", "//metrics")).body.decode()
            assert "MADE-UP" not in text and 'method="other"' in text

    asyncio.run(main())


def test_cors_answers_listed_origins_only(tmp_path):
    """A page of a listed origin is answered with CORS headers, also its preflight, which shows no identity."""

    async def main() -> None:
        listed = {"origin": "https://desk.example"}
        asks = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        async with served(tmp_path, origins=("https://desk.example",)) as client:
            answer = await client("OPTIONS", "/channels", headers={**listed, **asks})
            assert answer.status == 204
            assert answer.headers["access-control-allow-origin"] == "https://desk.example"
            assert "Authorization" in answer.headers["access-control-allow-headers"]
            answer = await client("GET", "/channels", headers=listed)
            assert answer.headers["access-control-allow-origin"] == "https://desk.example"
            for origin in ("https://other.example", "null", "https://desk.example.evil"):
                for method in ("OPTIONS", "GET"):
                    sent = {"origin": origin, **asks}
                    answer = await client(method, "/channels", headers=sent)
                    assert answer.status == 403
                    assert "access-control-allow-origin" not in answer.headers
            answer = await client("GET", "/channels")
            assert "access-control-allow-origin" not in answer.headers

    asyncio.run(main())


def test_large_bodies_share_one_byte_budget(tmp_path, monkeypatch):
    monkeypatch.setattr("ropewalk.server.http.guard.BODIES_BYTES_MAX", 250_000)

    async def main() -> None:
        async with served(tmp_path) as client:
            events = [{"type": "t", "payload": {"text": "x" * size}} for size in (1_000, 200_000, 300_000)]
            for path in ("/shiplog/x/events", "/gossip/chat/messages"):
                for event, status in zip(events, (201, 201, 503), strict=True):
                    sent = event if "shiplog" in path else {"payload": event["payload"]}
                    size = {"content-length": str(len(json.dumps(sent)))}
                    assert (await client("POST", path, sent, headers=size)).status == status
            # What was counted is given back when a request ends.
            assert (await client("POST", "/shiplog/x/events", events[1], headers=size)).status == 201

    asyncio.run(main())


def test_log_lines_are_rate_limited(capsys):
    from ropewalk.cli.server.serve import LINES_PER_S, _JsonLines, _Stderr

    handler = _Stderr()
    handler.setFormatter(_JsonLines())
    journal = logging.Logger("ropewalk.test")
    journal.addHandler(handler)
    for n in range(20 * LINES_PER_S):
        journal.info("line %d", n)
    journal.error("an error is always written")
    lines = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert lines[0] == "line 0" and lines[-1] == "an error is always written"
    assert lines[-2].endswith(f"lines were left out: more than {LINES_PER_S} a second")
    assert len(lines) < 20 * LINES_PER_S
