"""The AsyncAPI 3 document: streams of the server and messages of the bridges, from the schemas and the code."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

from ropewalk import __version__
from ropewalk.bridge import cloudevents
from ropewalk.bridge.brokers import forms, nats
from ropewalk.bridge.webhooks.forms import HEADERS as WEBHOOK_HEADERS
from ropewalk.kernel.schema import shipped
from ropewalk.stream.serve.server import STREAM_PATH

FROM_CLIENT: Final = {"sub": "Subscribe", "unsub": "Unsubscribe", "credit": "Credit", "pong": "Pong"}
FROM_SERVER: Final = {
    "ack": "Ack",
    "refUpdate": "RefUpdate",
    "busEvent": "BusEvent",
    "ping": "Ping",
    "error": "Error",
}
BROKER_HEADERS: Final = (
    forms.PATH,
    forms.LOG,
    forms.ULID,
    forms.TYPE,
    forms.COMMIT,
    forms.CONTENT_ID,
    "Content-Type",
)
_FRAME: Final = "api/stream_frame"


@cache
def asyncapi_document() -> dict[str, Any]:
    """Return the document."""
    frames = {**FROM_CLIENT, **FROM_SERVER}
    messages = {title: _frame(part, title) for part, title in frames.items()}
    messages |= {
        "BrokerEvent": _event("An event of a log, its canonical bytes", _headers(*BROKER_HEADERS)),
        "BrokerMessage": _message("Any message that a bridge takes in; JSON objects become the payload", {}),
        "WebhookDelivery": _message(
            "One delivery, signed over its time and body", _DELIVERY, _headers(*WEBHOOK_HEADERS)
        ),
        "CloudEvent": _message(
            "The same event as CloudEvents 1.0", _CLOUD_EVENT, content_type=cloudevents.STRUCTURED
        ),
    }
    channels = {
        "stream": _channel(STREAM_PATH, frames.values(), "S2 frames over one WebSocket, both ways."),
        "events": _channel(
            "/api/v1/events", FROM_SERVER.values(), "The same frames as Server-Sent Events; `id` is `seq`."
        ),
        "natsOut": _subject("A log goes out to a JetStream subject.", "BrokerEvent", "CloudEvent"),
        "natsIn": _subject("Messages of a subject come in to a topic.", "BrokerMessage", "CloudEvent"),
        "redisOut": _subject("A log goes out to a Redis stream.", "BrokerEvent", "CloudEvent"),
        "redisIn": _subject("Entries of a Redis stream come in to a topic.", "BrokerMessage", "CloudEvent"),
        "webhook": _channel(None, ("WebhookDelivery", "CloudEvent"), "POST requests to an address of yours."),
    }
    receives = {"stream": tuple(FROM_CLIENT.values()), "natsIn": None, "redisIn": None}
    operations = {}
    for name, channel in channels.items():
        if name in receives:
            operations[f"receive_{name}"] = _operation("receive", name, receives[name] or channel["messages"])
        if receives.get(name, ()) is not None:
            sent = FROM_SERVER.values() if name in ("stream", "events") else channel["messages"]
            operations[f"send_{name}"] = _operation("send", name, tuple(sent))
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "ropewalk",
            "version": __version__,
            "description": "Live streams of `ropewalk serve` and messages of `ropewalk bridge`.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"messages": messages},
    }


def _channel(address: str | None, messages: Any, description: str) -> dict[str, Any]:
    named = {title: {"$ref": f"#/components/messages/{title}"} for title in messages}
    return {"address": address, "description": description, "messages": named}


def _subject(description: str, *messages: str) -> dict[str, Any]:
    example = nats.subject_of("messages/jobs/pending")
    name = {
        "description": "The subject or stream; by default made from the name of the log.",
        "examples": [example],
    }
    return {**_channel("{name}", messages, description), "parameters": {"name": name}}


def _operation(action: str, channel: str, messages: Any) -> dict[str, Any]:
    refs = [{"$ref": f"#/channels/{channel}/messages/{title}"} for title in messages]
    return {"action": action, "channel": {"$ref": f"#/channels/{channel}"}, "messages": refs}


def _message(
    summary: str, payload: dict[str, Any], headers: dict[str, Any] | None = None, content_type: str = ""
) -> dict[str, Any]:
    found: dict[str, Any] = {"summary": summary, "payload": payload}
    if headers is not None:
        found["headers"] = headers
    if content_type:
        found["contentType"] = content_type
    return found


def _frame(part: str, title: str) -> dict[str, Any]:
    schema = _inlined(_FRAME, f"#/$defs/{part}")
    return _message(schema.pop("description", f"{title} frame"), schema)


def _event(summary: str, headers: dict[str, Any]) -> dict[str, Any]:
    return _message(summary, _inlined("shiplog/event_envelope", "#"), headers)


def _headers(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


def _inlined(name: str, place: str) -> dict[str, Any]:
    """Return a part of a shipped schema with every reference replaced by what it names."""
    document = json.loads(shipped.text(name))
    part = document
    for step in place.removeprefix("#").split("/")[1:]:
        part = part[step]
    by_id = {each: other for other, each in shipped.schema_ids().items()}

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(each) for each in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            base, _, rest = value["$ref"].partition("#")
            return _inlined(by_id[base] if base else name, f"#{rest}")
        return {key: walk(each) for key, each in value.items() if key not in ("$schema", "$id", "$defs")}

    found: dict[str, Any] = walk(part)
    return found


_CLOUD_EVENT: Final = {
    "type": "object",
    "required": list(cloudevents.REQUIRED),
    "properties": {name: {"type": "string"} for name in (*cloudevents.REQUIRED, "contentid", "commit")},
}
_DELIVERY: Final = {
    "type": "object",
    "required": ["id", "event", "ts", "payload"],
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "ts": {"type": "string", "format": "date-time"},
        "payload": {"type": "object"},
    },
}
