"""The console at `/`: built files of `console/`, served from this package with strict headers."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any, Final

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from ropewalk.server.http.replies import Asked

KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".woff2": "font/woff2",
    ".svg": "image/svg+xml",
}
PAGES: Final = ("logs", "deployments", "ledger", "gossip", "consumers", "pipeline", "verify", "schemas")
ASSETS: Final = "/console/"
# Logs are untrusted text: the page runs its own script only, makes no markup from strings and calls no other host.
GUARD: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@cache
def built_files() -> dict[str, tuple[bytes, bytes]]:
    """Return the files of the console by name, each plain and compressed."""
    found: dict[str, tuple[bytes, bytes]] = {}
    folder = files("ropewalk.server") / "console"
    for each in folder.iterdir():
        if PurePath(each.name).suffix in KINDS:
            body = each.read_bytes()
            found[each.name] = body, gzip.compress(body, 9, mtime=0)
    return found


def page_routes() -> list[HTTPRouteHandler]:
    """Return a route for each file; every page of the console is the same document."""
    pages = ["/", *(f"/{each}" for each in PAGES), *(f"/{each}/{{rest:path}}" for each in PAGES)]
    assets = [_route([ASSETS + name], name) for name in built_files() if name != "index.html"]
    return [_route(pages, "index.html"), *assets]


def _route(paths: list[str], name: str) -> HTTPRouteHandler:
    plain, packed = built_files()[name]
    kind = KINDS[PurePath(name).suffix]
    # The names of assets contain their digest; the document names the assets.
    caching = "no-cache" if name == "index.html" else "public, max-age=31536000, immutable"

    @get(paths, include_in_schema=False, media_type=kind, name=f"console {name}")
    async def show_file(request: Asked) -> Response[Any]:
        headers = {**GUARD, "Cache-Control": caching, "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", "") or kind == "font/woff2":
            return Response(plain, media_type=kind, headers=headers)
        return Response(packed, media_type=kind, headers={**headers, "Content-Encoding": "gzip"})

    return show_file
