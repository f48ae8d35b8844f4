"""Pages beside the stream: what is answered to a browser, and which pages may connect because of it."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

import pytest
import websockets.asyncio.client as client
from tests.tools import skip_without_rights
from tests.unit.cli.conftest import Ropewalk, ropewalk  # noqa: F401 - a fixture
from tests.waiting import LIMIT_S, aside, soon
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from ropewalk.errors import Unavailable
from ropewalk.gitlog.privacy.apply import policy_file
from ropewalk.net.text_socket import page_origins
from ropewalk.stream.serve.proxy_server import StreamProxy
from ropewalk.stream.serve.repository_stream import RepositoryStream


def asked(port: int, path: str) -> tuple[int, Mapping[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


async def is_let_in(stream: RepositoryStream, origin: str) -> bool:
    try:
        async with client.connect(stream.url, origin=Origin(origin), open_timeout=LIMIT_S):
            return True
    except InvalidStatus as refused:
        assert refused.response.status_code == 403
        return False


def test_pages_of_ours_may_connect_and_those_of_others_may_not(log):
    async def test() -> None:
        async with RepositoryStream(log, page=True) as stream:
            port = stream.server.port
            for name in ("127.0.0.1", "localhost", "[::1]"):
                assert await is_let_in(stream, f"http://{name}:{port}")
            others = (
                "http://evil.example",
                f"http://evil.example:{port}",
                f"http://127.0.0.1:{port + 1}",
                "null",
            )
            for origin in others:
                assert not await is_let_in(stream, origin)

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "0.0.0.0", "0:0:0:0:0:0:0:1", "::"])
def test_the_page_that_is_offered_may_connect(log, host):
    async def test() -> None:
        async with RepositoryStream(log, host=host, page=True) as stream:
            assert stream.server.page_url is not None
            address = urlsplit(stream.server.page_url)
            shown = ip_address(address.hostname or "")
            name = f"[{shown}]" if shown.version == 6 else str(shown)
            assert await is_let_in(stream, f"http://{name}:{address.port}")
            assert not await is_let_in(stream, f"http://evil.example:{address.port}")

    try:
        asyncio.run(asyncio.wait_for(test(), LIMIT_S))
    except Unavailable as error:
        skip_without_rights(f"this machine has no such address: {error}")


@pytest.mark.parametrize(
    ("host", "port", "origins"),
    [
        ("FD00:0::1", 8090, {"http://[fd00::1]:8090"}),
        ("192.0.2.7", 80, {"http://192.0.2.7"}),
        ("127.0.0.1", 80, {"http://127.0.0.1", "http://localhost", "http://[::1]"}),
        ("somewhere.example", 1, {"http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"}),
    ],
)
def test_pages_of_ours_are_called_as_a_browser_calls_them(host, port, origins):
    assert page_origins(host, port) == origins


def test_without_the_page_nobody_comes_from_here(log):
    async def test() -> None:
        async with RepositoryStream(log) as stream:
            port = stream.server.port
            assert stream.server.page_url is None
            assert (await aside(asked, port, "/"))[0] == 404
            assert not await is_let_in(stream, f"http://127.0.0.1:{port}")

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


def test_the_page_runs_no_script_but_its_own_and_speaks_to_nobody_else(log):
    async def test() -> None:
        async with RepositoryStream(log, page=True) as stream:
            for path, kind in (
                ("/", "text/html"),
                ("/live.js", "text/javascript"),
                ("/live.css", "text/css"),
            ):
                status, headers, body = await aside(asked, stream.server.port, f"{path}?any=thing")
                assert (status, headers["Content-Type"]) == (200, f"{kind}; charset=utf-8")
                rules = dict(
                    each.strip().split(" ", 1) for each in headers["Content-Security-Policy"].split(";")
                )
                assert rules["default-src"] == "'none'"
                assert rules["script-src"] == rules["connect-src"] == "'self'"
                assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
                assert b"https://" not in body
            assert (await aside(asked, stream.server.port, "/live.html"))[0] == 404

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


def test_probes_say_whether_the_stream_can_tell_what_happens(log):
    rules = policy_file(log.store.place)

    async def test() -> None:
        async with RepositoryStream(log, token="a-token-nobody-guesses", look_s=0.01) as stream:
            port = stream.server.port

            async def ready() -> tuple[int, str]:
                status, _, body = await aside(asked, port, "/readyz")
                return status, json.loads(body)["status"]

            assert await ready() == (200, "ok")
            rules.parent.mkdir(parents=True, exist_ok=True)
            rules.write_text("no policy")
            await soon(lambda: stream.server.fault is not None)
            assert await ready() == (503, "unavailable")
            assert (await aside(asked, port, "/healthz"))[0] == 200
            rules.unlink()
            await soon(lambda: stream.server.fault is None)
            assert await ready() == (200, "ok")

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


def test_a_proxy_without_its_upstream_is_not_ready(log):
    async def test() -> None:
        async with RepositoryStream(log) as origin:
            port = origin.server.port
            async with StreamProxy(origin.url) as proxy:
                assert (await aside(asked, proxy.server.port, "/readyz"))[0] == 200
                await origin.server.__aexit__(None, None, None)
                await soon(lambda: proxy.server.fault is not None)
                status, _, body = await aside(asked, proxy.server.port, "/readyz")
                assert (status, json.loads(body)["status"]) == (503, "unavailable")
                origin.server.port = port
                await origin.server.__aenter__()
                await soon(lambda: proxy.server.fault is None)
                assert (await aside(asked, proxy.server.port, "/readyz"))[0] == 200

    asyncio.run(asyncio.wait_for(test(), 2 * LIMIT_S))


@pytest.mark.parametrize("command", [("serve",), ("proxy", "ws://127.0.0.1:1")])
def test_a_page_and_a_token_exclude_each_other(ropewalk: Ropewalk, tmp_path, command):  # noqa: F811
    (tmp_path / "token").write_text("a-token-nobody-guesses\n")
    token = str(tmp_path / "token")
    ropewalk("init", "a.git")
    done = ropewalk("--repo", "a.git", "stream", *command, "--port", "0", "--page", "--token-file", token)
    assert done.code == 2
    assert "cannot send a token" in done.err
