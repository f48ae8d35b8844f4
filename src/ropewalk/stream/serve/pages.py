"""Answers to plain requests: health probes (`/healthz` runs, `/readyz` can do its work), and the live page.

The live page is an ordinary client of the stream, and fetches nothing from other hosts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

KINDS: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
PLACES: Final = {"/": "live.html", "/live.js": "live.js", "/live.css": "live.css"}
# Payloads are untrusted: no script of theirs runs here and nothing leaves the page.
GUARD: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
HEADERS: Final = {"Content-Type": "application/json", "Cache-Control": "no-store"}


class HtmlPage(NamedTuple):
    """An answer: its status, what is said about it, and itself."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def probe(path: str, fault: str | None, **figures: int) -> HtmlPage | None:
    """Return what a probe at a path is answered; None at other paths. `fault` is what keeps the server from its work.

    >>> probe("/readyz", None, connections=2).body
    b'{"status": "ok", "connections": 2}\\n'
    >>> probe("/readyz", "the disk is gone").status, probe("/healthz", "the disk is gone").status
    (503, 200)
    """
    if path == "/healthz":
        return _json_page(200, {"status": "ok"})
    if path != "/readyz":
        return None
    if fault is None:
        return _json_page(200, {"status": "ok", **figures})
    return _json_page(503, {"status": "unavailable", "reason": fault, **figures})


def _json_page(status: int, said: dict[str, Any]) -> HtmlPage:
    return HtmlPage(status, HEADERS, json.dumps(said).encode() + b"\n")


@cache
def live_page() -> Mapping[str, HtmlPage]:
    """Return the files of the live page, by their paths.

    >>> sorted(live_page())
    ['/', '/live.css', '/live.js']
    """
    here = files(__package__)
    return {path: _file(name, here.joinpath(name).read_bytes()) for path, name in PLACES.items()}


def _file(name: str, body: bytes) -> HtmlPage:
    kind = KINDS[name.rpartition(".")[2]]
    return HtmlPage(200, {"Content-Type": f"{kind}; charset=utf-8", **GUARD}, body)
