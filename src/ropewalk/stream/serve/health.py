"""Health checks for operators: `/healthz` the server runs, `/readyz` it can do its work."""

from __future__ import annotations

import json
from typing import Any, Final

from ropewalk.stream.serve.page import HtmlPage

HEADERS: Final = {"Content-Type": "application/json", "Cache-Control": "no-store"}


def probe(path: str, fault: str | None, **figures: int) -> HtmlPage | None:
    """Return what a probe at a path is answered; None at other paths. `fault` is what keeps the server from its work.

    >>> probe("/readyz", None, connections=2).body
    b'{"status": "ok", "connections": 2}\\n'
    >>> probe("/readyz", "the disk is gone").status, probe("/healthz", "the disk is gone").status
    (503, 200)
    """
    if path == "/healthz":
        return _page(200, {"status": "ok"})
    if path != "/readyz":
        return None
    if fault is None:
        return _page(200, {"status": "ok", **figures})
    return _page(503, {"status": "unavailable", "reason": fault, **figures})


def _page(status: int, said: dict[str, Any]) -> HtmlPage:
    return HtmlPage(status, HEADERS, json.dumps(said).encode() + b"\n")
