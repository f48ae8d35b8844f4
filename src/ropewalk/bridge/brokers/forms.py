"""Events as messages of a broker and back. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from ropewalk.bridge import cloudevents
from ropewalk.bridge.brokers.port import POSITION, Incoming, Outgoing
from ropewalk.errors import Invalid, InvalidEnvelope, TooLarge
from ropewalk.gitlog.core.envelope import ENVELOPE_BYTES_MAX, Event, refs_of
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3

PATH: Final = "Ropewalk-Path"  # the repositories it came through, the publisher last: none takes it again
LOG: Final = "Ropewalk-Log"
ULID: Final = "Ropewalk-Ulid"
TYPE: Final = "Ropewalk-Type"
COMMIT: Final = "Ropewalk-Commit"
CONTENT_ID: Final = "Ropewalk-Content-Id"
REF: Final = "broker"  # the member of `refs` that names stream and position of an event that came in
PATH_REF: Final = "broker.path"  # the member that names the repositories it came through
PATH_FORM: Final = re.compile(r"[0-9a-f]{32}(,[0-9a-f]{32}){0,31}")
REFUSED_TYPE: Final = "bridge.refused"
BODY_BYTES_MAX: Final = ENVELOPE_BYTES_MAX


def outgoing(event: Event, log: str, origin: str, form: str = "envelope") -> Outgoing:
    """Return the message of an event: its canonical bytes, or a CloudEvent, and headers that name it."""
    said = path_of({PATH: str(broker_refs(event).get(PATH_REF, ""))})
    path = said[-31:]  # and the origin: 32, as PATH_FORM
    headers = {
        PATH: ",".join((*path, origin)),
        LOG: log,
        ULID: event.ulid,
        TYPE: _header(event.type),
        COMMIT: event.commit,
        CONTENT_ID: event.content_id,
    }
    body = event.raw
    if form == "cloudevents":
        body = cloudevents.to_json(cloudevents.from_event(event, log))
        headers["Content-Type"] = cloudevents.STRUCTURED
    return Outgoing(f"{log}/{event.ulid}", body, headers)


def broker_refs(event: Event) -> Mapping[str, Any]:
    """Return the `refs` of an event that came from a broker; nothing, and without parsing it, for other events."""
    return refs_of(event.envelope) if b'"broker' in event.raw else {}


def path_of(headers: Mapping[str, str]) -> list[str]:
    """Return the repositories that a message came through; a repository takes in none that came through itself."""
    path = headers.get(PATH, "")
    return path.split(",") if PATH_FORM.fullmatch(path) else []


def document(message: Incoming, stream: str, mark: str) -> dict[str, Any]:
    """Return the event that records a message; `refs` names its place in the stream.

    A CloudEvent keeps its type and data; another JSON object becomes the payload; other bytes are kept as base64.
    """
    if len(message.body) > BODY_BYTES_MAX:
        raise TooLarge(f"message body must be at most {BODY_BYTES_MAX} bytes, got {len(message.body)}")
    headers = {name.lower(): value for name, value in message.headers.items()}
    if cloudevents.is_cloudevent(headers):
        found = cloudevents.to_document(cloudevents.parse(headers, message.body))
    else:
        found = {"type": headers.get(TYPE.lower(), "broker.message"), "payload": _payload(message.body)}
    refs = {REF: place(stream, mark, message.position)}
    path = message.headers.get(PATH, "")
    if PATH_FORM.fullmatch(path):
        refs[PATH_REF] = path
    return {**found, "ns": "", "refs": refs}


def refused(message: Incoming, stream: str, mark: str, error: Exception) -> dict[str, Any]:
    """Return the event that records that a message could not be taken in; it repeats nothing of the message."""
    payload = {"code": type(error).__name__, "bytes": len(message.body), "blake3": blake3(message.body).hex()}
    return {
        "ns": "",
        "type": REFUSED_TYPE,
        "payload": payload,
        "refs": {REF: place(stream, mark, message.position)},
    }


def place(stream: str, mark: str, position: str) -> str:
    """Return how `refs` names a message.

    >>> place("ORDERS", "5c6d1a2b", "17")
    'ORDERS@5c6d1a2b:17'
    """
    return f"{stream}@{mark}:{position}"


def position_of(refs: Mapping[str, Any], stream: str, mark: str) -> str | None:
    """Return the position that `refs` of an event record for a stream; None if it did not come from there.

    Events that were recorded before streams had marks name the stream alone.

    >>> position_of({"broker": "ORDERS@5c6d1a2b:17"}, "ORDERS", "5c6d1a2b")
    '17'
    >>> position_of({"broker": "ORDERS@5c6d1a2b:17"}, "ORDERS", "00000000")
    """
    named = refs.get(REF)
    if not isinstance(named, str):
        return None
    name, _, position = named.rpartition(":")
    return position if name in (f"{stream}@{mark}", stream) and POSITION.fullmatch(position) else None


def _payload(body: bytes) -> dict[str, Any]:
    try:
        parsed = jcs.parse(body)
    except Invalid:
        return {"data_base64": base64.b64encode(body).decode("ascii")}
    return parsed if isinstance(parsed, dict) else {"data": parsed}


def _header(text: str) -> str:
    """Return a text as a header value: header lines end at a line break, so anything unusual is written as JSON."""
    if not text.isascii() or not text.isprintable():
        return json.dumps(text)
    return text


def check_form(form: str) -> str:
    """Return the name of a form. Raises `InvalidEnvelope` for any other."""
    if form not in ("envelope", "cloudevents"):
        raise InvalidEnvelope(f"format must be envelope or cloudevents, got {form!r}")
    return form
