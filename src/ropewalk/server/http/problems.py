"""Every refusal as RFC 9457 `application/problem+json`, with the codes and statuses of `ropewalk.errors`."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Any, Final

from litestar import Request, Response
from litestar.exceptions import HTTPException

from ropewalk.errors import HTTP_CODES, PROBLEM_TYPE_BASE, RateLimited, RopewalkError, Unauthenticated

MEDIA_TYPE: Final = "application/problem+json"
RETRY_S: Final = 1
_journal = logging.getLogger("ropewalk.server")


class HttpRefusal(Exception):
    """A refusal by status, where no error of the tree fits."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers or {}


def http_problem(status: int, detail: str) -> dict[str, Any]:
    """Return the problem of a status.

    >>> http_problem(405, "GET only")["code"]
    'MethodNotAllowed'
    """
    code, advice = HTTP_CODES.get(status, ("Internal", ""))
    kebab = "".join(f"-{each.lower()}" if each.isupper() else each for each in code).lstrip("-")
    return {
        "type": PROBLEM_TYPE_BASE + kebab,
        "title": code,
        "status": status,
        "code": code,
        "detail": detail,
        **({"advice": advice} if advice else {}),
    }


def headers_of(error: RopewalkError) -> dict[str, str]:
    """Return the headers that a refusal needs."""
    if isinstance(error, Unauthenticated):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, RateLimited):
        return {"Retry-After": str(max(RETRY_S, round(error.fields.get("retry_after_s", RETRY_S))))}
    return {"Retry-After": str(RETRY_S)} if error.status == HTTPStatus.SERVICE_UNAVAILABLE else {}


def body_of(problem: dict[str, Any]) -> bytes:
    """Return a problem as it travels."""
    return json.dumps(problem, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"


def answer(problem: dict[str, Any], headers: dict[str, str] | None = None) -> Response[bytes]:
    """Return a problem as a response."""
    return Response(
        body_of(problem),
        status_code=problem["status"],
        media_type=MEDIA_TYPE,
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def on_error(_request: Request[Any, Any, Any] | None, error: Exception) -> Response[bytes]:
    """Answer whatever a route raised."""
    if isinstance(error, RopewalkError):
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR and error.code == "Internal":
            _journal.error("a request failed: %s", error.detail)
        return answer(error.to_problem(), headers_of(error))
    if isinstance(error, HttpRefusal):
        return answer(http_problem(error.status, error.detail), error.headers)
    if isinstance(error, HTTPException):
        detail = str(error.detail)
        if isinstance(error.extra, list) and error.extra:
            first = error.extra[0]
            detail = f"{first.get('key', 'request')}: {first.get('message', detail)}"
        return answer(http_problem(error.status_code, detail), dict(error.headers or {}))
    _journal.error("a request failed", exc_info=error)
    return answer(RopewalkError("the server failed; see its log").to_problem())
