"""The live page: a stream in a browser. It is an ordinary client, and fetches nothing from other hosts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from ropewalk.stream.serve.page import HtmlPage

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


@cache
def live_page() -> Mapping[str, HtmlPage]:
    """Return the files of the live page, by their paths.

    >>> sorted(live_page())
    ['/', '/live.css', '/live.js']
    """
    here = files(__package__)
    return {path: _page(name, here.joinpath(name).read_bytes()) for path, name in PLACES.items()}


def _page(name: str, body: bytes) -> HtmlPage:
    kind = KINDS[name.rpartition(".")[2]]
    return HtmlPage(200, {"Content-Type": f"{kind}; charset=utf-8", **GUARD}, body)
