"""What the guard refuses before a route sees it, and what it counts."""

from __future__ import annotations

import asyncio

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
