"""CloudEvents 1.0 as a form of events: written in structured mode, read in structured and binary mode. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from ropewalk.errors import InvalidEnvelope
from ropewalk.gitlog.core.envelope import Event
from ropewalk.kernel import jcs
from ropewalk.kernel.ulid import time_ms

STRUCTURED: Final = "application/cloudevents+json"
PREFIX: Final = "ce-"  # of header names in binary mode, as HTTP and NATS bind them
REQUIRED: Final = ("id", "source", "specversion", "type")
ATTRIBUTE: Final = re.compile(r"[a-z0-9]{1,20}")
ATTRIBUTES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """One event: its context attributes and its data."""

    attributes: Mapping[str, str]
    data: Any = None
    binary: bytes | None = field(default=None)  # data that is no JSON


def from_event(event: Event, log: str) -> CloudEvent:
    """Return an event of a log as a CloudEvent: the ULID is its id, the log its source, the payload its data.

    The content id and the commit are extension attributes, so that a consumer can ask for a proof.
    """
    attributes = {
        "specversion": "1.0",
        "id": event.ulid,
        "source": f"/ropewalk/{log}",
        "type": event.type,
        "time": time_of(event),
        "datacontenttype": "application/json",
        "contentid": event.content_id,
        "commit": event.commit,
    }
    return CloudEvent(attributes, event.payload)


def time_of(event: Event) -> str:
    """Return the time of an event's ULID, as RFC 3339 with milliseconds."""
    moment = datetime.fromtimestamp(time_ms(event.ulid) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_json(event: CloudEvent) -> bytes:
    """Return the structured form.

    >>> to_json(CloudEvent({"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}, {"a": 1}))
    b'{"data":{"a":1},"id":"1","source":"/s","specversion":"1.0","type":"t"}'
    """
    value: dict[str, Any] = dict(event.attributes)
    if event.binary is not None:
        value["data_base64"] = base64.b64encode(event.binary).decode("ascii")
    elif event.data is not None:
        value["data"] = event.data
    return jcs.encode(value)


def is_cloudevent(headers: Mapping[str, str]) -> bool:
    """Return whether the headers (names in lower case) announce a CloudEvent in either mode."""
    return _media(headers) == STRUCTURED or f"{PREFIX}specversion" in headers


def parse(headers: Mapping[str, str], body: bytes) -> CloudEvent:
    """Read a CloudEvent in structured or binary mode. Raises `InvalidEnvelope` or `InvalidJson`.

    >>> headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
    >>> parse(headers, b'{"a": 1}').data
    {'a': 1}
    """
    if _media(headers) == STRUCTURED:
        return _structured(body)
    attributes = {
        name.removeprefix(PREFIX): _unpercent(value)
        for name, value in headers.items()
        if name.startswith(PREFIX)
    }
    kind = headers.get("content-type", "application/json")
    _check({**attributes, "datacontenttype": kind})
    if not body:
        return CloudEvent(attributes)
    if _is_json(kind):
        return CloudEvent(attributes, jcs.parse(body))
    return CloudEvent(attributes, binary=body)


def to_document(event: CloudEvent) -> dict[str, Any]:
    """Return the event to append: the type stays, the attributes are kept beside the data in the payload."""
    kept = {name: value for name, value in event.attributes.items() if name not in ("specversion", "type")}
    payload: dict[str, Any] = {"cloudevent": kept}
    if event.binary is not None:
        payload["data_base64"] = base64.b64encode(event.binary).decode("ascii")
    elif event.data is not None:
        payload["data"] = event.data
    return {"type": event.attributes["type"], "payload": payload}


def _structured(body: bytes) -> CloudEvent:
    value = jcs.parse(body)
    if not isinstance(value, dict):
        raise InvalidEnvelope(f"a CloudEvent must be a JSON object, got {type(value).__name__}")
    data, encoded = value.pop("data", None), value.pop("data_base64", None)
    if encoded is not None and data is not None:
        raise InvalidEnvelope('a CloudEvent must have "data" or "data_base64", got both')
    attributes = {name: text for name, text in value.items() if isinstance(text, str)}
    if len(attributes) != len(value):
        name = next(name for name in value if name not in attributes)
        raise InvalidEnvelope(f'CloudEvent attribute "{name}" must be a string', where=f"/{name}")
    _check(attributes)
    if encoded is None:
        return CloudEvent(attributes, data)
    if not isinstance(encoded, str):
        raise InvalidEnvelope('"data_base64" must be a string', where="/data_base64")
    try:
        return CloudEvent(attributes, binary=base64.b64decode(encoded, validate=True))
    except ValueError:
        raise InvalidEnvelope('"data_base64" must be base64', where="/data_base64") from None


def _check(attributes: Mapping[str, str]) -> None:
    if len(attributes) > ATTRIBUTES_MAX:
        raise InvalidEnvelope(
            f"a CloudEvent must have at most {ATTRIBUTES_MAX} attributes, got {len(attributes)}"
        )
    for name in REQUIRED:
        if not attributes.get(name):
            raise InvalidEnvelope(f'CloudEvent attribute "{name}" is missing or empty', where=f"/{name}")
    if attributes["specversion"] != "1.0":
        raise InvalidEnvelope(
            f'"specversion" must be 1.0, got {attributes["specversion"][:20]!r}', where="/specversion"
        )
    for name in attributes:
        if name == "data" or not ATTRIBUTE.fullmatch(name):
            raise InvalidEnvelope(
                f'CloudEvent attribute names must be lowercase letters and digits, not "data", got {name[:40]!r}'
            )


def _media(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _is_json(kind: str) -> bool:
    media = kind.partition(";")[0].strip().lower()
    return media.endswith(("/json", "+json"))


def _unpercent(text: str) -> str:
    try:
        raw = re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes([int(found[1], 16)]), text.encode("utf-8"))
        return raw.decode("utf-8")
    except UnicodeError:
        raise InvalidEnvelope("a CloudEvent header must be percent-encoded UTF-8") from None
