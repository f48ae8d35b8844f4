"""The OpenAPI 3.1 document: generated from the routes, with bodies, examples and problems added."""

from __future__ import annotations

import html
import json
from functools import lru_cache
from typing import Any, Final

from litestar import Litestar

ULID, OID = "01HF4Y9Q1SM8Q7K9DK2R4V5CXD", "8b1c1e4f2a6c9d0e7b3a5c4d6e8f0a1b2c3d4e5f"
EVENT: Final = {"type": "proposal.created", "payload": {"id": 7}}
RECEIPT: Final = {"ulid": ULID, "content_id": "blake3:" + "2a6c" * 16, "commit": OID, "replayed": False}
_OBJECT: Final = {"type": "object"}
_ONE_OR_MANY: Final = {
    "oneOf": [_OBJECT, {"type": "array", "items": _OBJECT, "minItems": 1, "maxItems": 4096}]
}
# operation → (what the body is, its media types, an example)
BODIES: Final[dict[str, tuple[dict[str, Any], tuple[str, ...], Any]]] = {
    "append_events": (_ONE_OR_MANY, ("application/json",), EVENT),
    "publish_message": (_ONE_OR_MANY, ("application/json",), {"type": "job.made", "payload": {"id": 7}}),
    "set_consumer": (_OBJECT, ("application/json",), {"ulid": ULID}),
    "add_webhook": (
        _OBJECT,
        ("application/json",),
        {"url": "https://ci.example/hook", "log": "shiplog/prod"},
    ),
    "replay_dead": (_OBJECT, ("application/json",), {"ulids": [ULID]}),
    "append_envelopes": (_ONE_OR_MANY, ("application/json", "application/cbor"), None),
    "append_gossip": (_OBJECT, ("application/json",), {"payload": {"text": "hello"}, "key": "node"}),
    "ask_warehouse": (
        _OBJECT,
        ("application/json",),
        {"query": "SELECT service, artifact FROM deployments WHERE current", "limit": 100},
    ),
}
EXAMPLES: Final[dict[str, Any]] = {
    "append_events": {**RECEIPT, "ns": "governance"},
    "publish_message": {**RECEIPT, "topic": "jobs/pending"},
    "show_health": {"status": "ok"},
    "show_ready": {"status": "ok", "seq": 1763421000000000, "connections": 2},
    "list_channels": {"channels": ["audit"]},
    "set_consumer": {"ref": "refs/gatos/consumers/analytics/governance", "ulid": ULID, "commit": OID},
    "show_heads": {"heads": ["0a1b2c"], "clock": 8, "pending": 0, "peers": []},
}
PROBLEM: Final = {
    "type": "object",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "Stable; match on this."},
        "detail": {"type": "string"},
        "advice": {"type": "string"},
        "instance": {"type": "string"},
    },
}
KEYED: Final = ("append_events", "publish_message", "append_envelopes", "append_gossip")


def operation_id(handler: Any, _method: Any, _path: Any) -> str:
    """Name an operation by its route function."""
    return str(handler.handler_name)


@lru_cache(maxsize=4)
def openapi_document(app: Litestar) -> dict[str, Any]:
    """Return the document of an application."""
    document: dict[str, Any] = app.openapi_schema.to_schema()
    document["info"]["description"] = (
        "Append-only event logs over HTTP. Every error is application/problem+json with a stable `code`."
    )
    document["components"].setdefault("securitySchemes", {})["token"] = {"type": "http", "scheme": "bearer"}
    document["security"] = [{}, {"token": []}]
    document["components"].setdefault("schemas", {})["Problem"] = PROBLEM
    for path in document["paths"].values():
        for operation in path.values():
            if isinstance(operation, dict) and "operationId" in operation:
                _complete(operation)
    return document


def _complete(operation: dict[str, Any]) -> None:
    name = operation["operationId"]
    text = operation.get("description") or operation.get("summary") or name
    operation["summary"] = str(text).strip().split("\n")[0]
    answers = operation["responses"]
    answers.pop("400", None)
    problem = {"$ref": "#/components/schemas/Problem"}
    answers["default"] = {
        "description": "A problem (RFC 9457).",
        "content": {"application/problem+json": {"schema": problem}},
    }
    if name in EXAMPLES:
        for status, answer in answers.items():
            if status in ("200", "201"):
                for content in answer.get("content", {}).values():
                    content["example"] = EXAMPLES[name]
    if BODIES.get(name, ({},))[0] is _ONE_OR_MANY:
        one = answers["201"]["content"]["application/json"]
        many = {
            "type": "object",
            "required": ["receipts"],
            "properties": {"receipts": {"type": "array", "items": {"oneOf": [one["schema"], problem]}}},
        }
        one["schema"] = {"oneOf": [one["schema"], many]}
        answers["200"] = {
            "description": "An array with refused items: each is a receipt or a problem, in its place.",
            "content": {"application/json": {"schema": many}},
        }
    if name in BODIES:
        schema, kinds, example = BODIES[name]
        content = {kind: {"schema": schema} for kind in kinds}
        if example is not None:
            content["application/json"]["example"] = example
        operation["requestBody"] = {"required": True, "content": content}
    if name in KEYED:
        operation.setdefault("parameters", []).append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "A retry with the same key and body gets the first receipt again.",
                "schema": {"type": "string", "maxLength": 255},
            }
        )


def docs_page(document: dict[str, Any]) -> str:
    """Return the document as one HTML page without scripts."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>ropewalk API</title><style>",
        "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}",
        "code,pre{font:14px ui-monospace,monospace}pre{background:#8881;padding:.6rem;overflow:auto}",
        "h2{font-size:1.1rem;margin-top:2rem}</style>",
        f"<h1>{html.escape(document['info']['title'])} API</h1>",
        f"<p>{html.escape(document['info']['description'])} ",
        "The machine-readable form is <a href=/openapi.json>/openapi.json</a>.</p>",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if isinstance(operation, dict) and "operationId" in operation:
                parts += _section(path, method, operation)
    return "".join(parts)


def _section(path: str, method: str, operation: dict[str, Any]) -> list[str]:
    text = str(operation.get("description") or operation["summary"]).strip()
    parts = [f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{html.escape(text)}</p>"]
    rows = [
        f"<li><code>{html.escape(each['name'])}</code> ({each['in']}"
        f"{', required' if each.get('required') else ''}) {html.escape(each.get('description') or '')}</li>"
        for each in operation.get("parameters", ())
    ]
    if rows:
        parts.append(f"<ul>{''.join(rows)}</ul>")
    body = operation.get("requestBody")
    if body is not None:
        example = body["content"]["application/json"].get("example")
        parts.append(f"<p>Body: {html.escape(', '.join(body['content']))}</p>")
        if example is not None:
            parts.append(f"<pre>{html.escape(json.dumps(example))}</pre>")
    for status, answer in operation["responses"].items():
        for kind, content in answer.get("content", {}).items():
            parts.append(f"<p>{status}: {html.escape(kind)}</p>")
            if "example" in content:
                parts.append(f"<pre>{html.escape(json.dumps(content['example']))}</pre>")
    return parts
