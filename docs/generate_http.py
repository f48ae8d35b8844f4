"""Write docs/reference/http.md and asyncapi.json from the code: `python docs/generate_http.py [--check]`.

With `--check` nothing is written; a file that has drifted ends with 5.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from generated import write_or_check

from ropewalk.server.http.app import make_routes
from ropewalk.server.http.asyncapi import asyncapi_document
from ropewalk.server.http.openapi import openapi_document

__all__ = ["PAGE", "main", "render"]

PAGE = Path(__file__).resolve().parent / "reference" / "http.md"
ASYNCAPI = PAGE.with_name("asyncapi.json")
INTRO = """\
# HTTP

Written by `docs/generate_http.py` from the routes of `ropewalk serve`; do not edit. The same document is at
`/openapi.json` (OpenAPI 3.1) and, readable without a network, at `/docs` of every server. Streams and bridges are in
[asyncapi.json](asyncapi.json) (AsyncAPI 3), which every server has at `/asyncapi.json`.
[The guide](../guide/serve.md) shows how to use it.

Every error is `application/problem+json` (RFC 9457) with a stable [`code`](errors.md). A POST with an
`Idempotency-Key` that is sent again with the same body gets the first receipt again, also after a restart; with another
body it is 422 `DigestMismatch`. Status 429 and 503 carry `Retry-After`: nothing was written."""


def render() -> str:
    """Return the whole page."""
    parts = [INTRO]
    for path, operations in openapi_document(make_routes(None))["paths"].items():
        for method, operation in operations.items():
            if isinstance(operation, dict) and "operationId" in operation:
                parts.append(_section(path, method, operation))
    return "\n\n".join(parts) + "\n"


def _section(path: str, method: str, operation: dict[str, Any]) -> str:
    text = " ".join(str(operation.get("description") or operation["summary"]).split())
    parts = [f"## `{method.upper()} {path}`", text]
    rows = [
        f"| `{each['name']}` | {each['in']} | {'yes' if each.get('required') else 'no'} | "
        f"{_description(each)} |"
        for each in operation.get("parameters", ())
    ]
    if rows:
        parts.append("\n".join(["| parameter | in | required | meaning |", "|---|---|---|---|", *rows]))
    body = operation.get("requestBody")
    if body is not None:
        parts.append(f"Body: {', '.join(f'`{kind}`' for kind in body['content'])}.")
        parts += _example(body["content"])
    for status, answer in operation["responses"].items():
        if status != "default":
            kinds = ", ".join(f"`{kind}`" for kind in answer.get("content", {})) or "no body"
            parts.append(f"Answer {status}: {kinds}.")
            parts += _example(answer.get("content", {}))
    return "\n\n".join(parts)


def _description(parameter: dict[str, Any]) -> str:
    found = parameter.get("description") or parameter.get("schema", {}).get("description") or ""
    return str(found)


def _example(content: dict[str, Any]) -> list[str]:
    found = [each["example"] for each in content.values() if "example" in each]
    return [f"```json\n{json.dumps(found[0])}\n```"] if found else []


def main(arguments: list[str]) -> int:
    """Write the files, or compare them."""
    stream = json.dumps(asyncapi_document(), indent=1, ensure_ascii=False) + "\n"
    return write_or_check({PAGE: render(), ASYNCAPI: stream}, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
