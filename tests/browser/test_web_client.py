"""The JavaScript client in a real browser: the example page, listed and other origins, offline verification."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Page, browser, find
from tests.interop.test_serve import envelopes
from tests.serving import Served, call, serving
from tests.tools import needs_that
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    needs_that(find(), "no Chromium here"),
]
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = "examples/web/live.html"
SHOWN = "[...document.querySelectorAll('li')].map((item) => item.textContent).join('|')"
CLIENT = "import('/clients/js/dist/ropewalk.js')"


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with browser() as found:
        yield found


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def pages(folder: Path = ROOT) -> Iterator[str]:
    """Serve the checkout, or another folder, as an ordinary web server of another origin does."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def asked(tab: Page, script: str) -> dict[str, Any]:
    """Return what an async function body in the page comes to; an exception comes back as its code or text."""
    keep = "(found) => { window.answer = JSON.stringify(found); }"
    failed = "(error) => ({ error: error.code ?? String(error) })"
    done = f"then((value) => ({{ value }}), {failed}).then({keep})"
    tab.ask(f"window.answer = null; (async () => {{ {script} }})().{done}; 0")
    until(lambda: tab.ask("window.answer") is not None)
    found: dict[str, Any] = json.loads(tab.ask("window.answer"))
    return found


def test_example_page_shows_live_events(tab, tmp_path):
    with pages() as site, serving(tmp_path, "--origin", site) as server:
        tab.open(f"{site}/{EXAMPLE}?url={server.facts['url']}", 1000)
        until(lambda: _connections(server) == 1)
        draft = {"type": "made", "payload": {"text": "<img src=x onerror=alert(1)>"}}

        def arrives() -> bool:
            assert server("POST", "/shiplog/governance/events", draft).status == 201
            return bool(tab.ask(SHOWN))  # what came before the subscription is not shown

        until(arrives)
        shown = set(tab.ask(SHOWN).split("|"))
        assert shown == {'shiplog/governance  made  {"text":"<img src=x onerror=alert(1)>"}'}
        assert tab.ask("document.querySelectorAll('img').length") == 0


def test_listed_origin_appends_and_verifies(tab, tmp_path):
    """A page of a listed origin appends, reads problems, and verifies a bundle, a proof and a head by itself."""
    with pages() as site, serving(tmp_path, "--origin", site) as server:
        answer = server("POST", "/channels/audit/envelopes", envelopes(server.folder, 3))
        envelope_id = answer.json["receipts"][0]["envelope_id"]
        tab.open(f"{site}/clients/js/package.json", 1000)
        found = asked(
            tab,
            f"""const {{ Client, verify }} = await {CLIENT};
            const client = new Client({{ url: {json.dumps(server.facts["url"])} }});
            const receipt = await client.appendEvent("web", {{ type: "made", payload: {{ n: 1 }} }});
            const trust = await client.trust("audit");
            const files = [await client.bundle("audit"), await client.proof("audit", {json.dumps(envelope_id)}),
                           await client.checkpoint("audit", "log.example")];
            const code = await client.showChannel("missing").catch((error) => error.code);
            const verdicts = files.map((file) => verify(file, {{ trust }}).verdict);
            return [receipt.ns, verdicts, verify(files[1]).verdict, code];""",
        )
        assert found == {"value": ["web", ["passed"] * 3, "untrusted", "NotFound"]}


def test_other_origins_are_refused_and_logged(tab, tmp_path):
    with pages() as site, serving(tmp_path) as server:
        tab.open(f"{site}/clients/js/package.json", 1000)
        url = json.dumps(server.facts["url"])
        found = asked(
            tab,
            f"const {{ Client }} = await {CLIENT}; await new Client({{ url: {url}, retries: 0 }}).channels();",
        )
        assert found == {"error": "Unavailable"}
        found = asked(
            tab,
            f"""const socket = new WebSocket({url}.replace("http", "ws") + "/api/v1/stream");
            return await new Promise((resolve) => {{
              socket.onopen = () => resolve("open");
              socket.onclose = () => resolve("closed");
            }});""",
        )
        assert found == {"value": "closed"}
        assert server("OPTIONS", "/channels", headers={"Origin": site}).status == 403
        until(lambda: server.errors().count(f"web pages of '{site}' may not use this server") >= 2)


def test_token_reaches_the_stream_from_a_page(tab, tmp_path):
    """A browser's WebSocket sends no Authorization; the client reads Server-Sent Events instead."""
    with serving(tmp_path):
        pass  # makes the repository
    made = call(tmp_path, "auth", "add", "ada", "--right", "shiplog/web:read,append")
    assert made.returncode == 0, made.stderr
    token, auth = made.stdout.decode().strip(), tmp_path / "log.git/ropewalk/auth.json"
    with pages() as site, serving(tmp_path, "--origin", site, "--auth", str(auth)) as server:
        tab.open(f"{site}/clients/js/package.json", 1000)
        script = f"""const {{ Client }} = await {CLIENT};
            const client = new Client({{ url: {json.dumps(server.facts["url"])}, token: TOKEN }});
            const stream = client.subscribe({{ topics: ["shiplog/web"], onState: (state) => {{
              if (state === "open") client.appendEvent("web", {{ type: "made", payload: {{ n: 3 }} }}); }} }});
            for await (const item of stream) return item.payload;"""
        assert asked(tab, script.replace("TOKEN", json.dumps(token))) == {"value": {"n": 3}}
        wrong = base64.b64encode(b"no token").decode()
        assert asked(tab, script.replace("TOKEN", json.dumps(wrong))) == {"error": "Unauthenticated"}


def _connections(server: Served) -> int:
    return int(server("GET", "/readyz").json["connections"])
