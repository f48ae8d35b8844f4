"""The npm GossipLog in a real browser, kept in IndexedDB, as a peer of `ropewalk gossip serve` (S3-init.3)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Page, browser, find
from tests.browser.test_live_page import running
from tests.browser.test_web_client import asked, pages
from tests.interop.test_js_client import CLIENT
from tests.serving import call
from tests.tools import install_npm_packages, needs, needs_that
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    needs("node", "npm"),
    pytest.mark.timeout(600),  # the first run installs the package and compiles its SQLite
    needs_that(find(), "no Chromium here"),
]
PEER = Path(__file__).resolve().parents[1] / "interop/node"
TOPIC = "com.example.browser"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a page whose script is the npm package, bundled as a web developer does it."""
    folder = tmp_path_factory.mktemp("site")
    install_npm_packages(PEER, "@canvas-js/gossiplog")
    build = install_npm_packages(CLIENT, "esbuild") / "node_modules/.bin/esbuild"
    options = ["--bundle", "--format=esm", "--target=es2022", f"--outfile={folder / 'peer.js'}"]
    subprocess.run([build, "browser.mjs", *options], cwd=PEER, check=True, capture_output=True, timeout=120)
    (folder / "index.html").write_text("<!doctype html><script type=module src=peer.js></script>")
    with pages(folder) as url:
        yield url


@contextmanager
def gossip(folder: Path, *options: str) -> Iterator[str]:
    words = ("gossip", "serve", "--topic", TOPIC, "--port", "0", *options)
    with running("--repo", str(folder / "log.git"), *words) as facts:
        yield str(facts["url"])


def opened(tab: Page, site: str) -> None:
    tab.open(f"{site}/index.html?topic={TOPIC}", 800)
    until(lambda: tab.ask("typeof window.peer") == "object")


def status(tab: Page) -> Any:
    return asked(tab, "return await peer.status();")["value"]


def test_indexeddb_peer_syncs_with_ropewalk(site, tmp_path):
    """Both sides get what the other appended, before and while connected; a reload keeps it all."""
    append = ("gossip", "append", "--topic", TOPIC, "--payload", "-")
    ran(tmp_path, "init", str(tmp_path / "log.git"))
    ran(tmp_path, *append, stdin=b'{"from":"python"}')
    with browser() as tab, gossip(tmp_path, "--origin", site) as url:
        opened(tab, site)
        assert "error" not in asked(tab, "return await peer.append({ from: 'browser', n: 1 });")
        assert "error" not in asked(tab, f"await peer.connect({json.dumps(url)});")
        until(lambda: status(tab)["count"] == 2)
        asked(tab, "return await peer.append({ from: 'browser', n: 2 });")
        ran(tmp_path, *append, stdin=b'{"from":"python","n":2}')
        until(lambda: status(tab)["count"] == 4)
        until(lambda: count(tmp_path) == 4)
        before = status(tab)
        opened(tab, site)
        assert status(tab) == before


def test_gossip_refuses_pages_that_are_not_listed(site, tmp_path):
    ran(tmp_path, "init", str(tmp_path / "log.git"))
    with browser() as tab, gossip(tmp_path) as url:
        opened(tab, site)
        socket = f"const socket = new WebSocket({json.dumps(url)});"
        wait = "new Promise((done) => { socket.onopen = () => done('open'); socket.onclose = () => done('closed'); })"
        assert asked(tab, f"{socket} return await {wait};") == {"value": "closed"}


def ran(folder: Path, *words: str, stdin: bytes = b"") -> str:
    done = call(folder, *words, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def count(folder: Path) -> int:
    found = json.loads(ran(folder, "gossip", "log", "--topic", TOPIC, "--json"))
    return len(found["messages"])
