"""CloudEvents, checked by the `cloudevents` package in both directions."""

from __future__ import annotations

import json

import pytest
from cloudevents.v1.conversion import to_binary, to_structured
from cloudevents.v1.http import CloudEvent as TheirEvent
from cloudevents.v1.http import from_http

from ropewalk.bridge import cloudevents
from ropewalk.errors import Invalid, InvalidEnvelope

REQUIRED = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def test_event_of_a_log_is_a_cloudevent(log):
    log.append("prod", {"type": "deploy.finished", "payload": {"service": "wëb"}})
    (event,) = log.read("prod").events
    made = cloudevents.from_event(event, "shiplog/prod")
    theirs = from_http({"content-type": cloudevents.STRUCTURED}, cloudevents.to_json(made))
    assert theirs.get_data() == {"service": "wëb"}
    found = {name: theirs.get(name) for name in ("id", "source", "type", "contentid", "commit")}
    assert found == {
        "id": event.ulid,
        "source": "/ropewalk/shiplog/prod",
        "type": "deploy.finished",
        "contentid": event.content_id,
        "commit": event.commit,
    }


@pytest.mark.parametrize("form", [to_structured, to_binary])
def test_foreign_cloudevents_are_read(form):
    theirs = TheirEvent({"type": "order.placed", "source": "/shop", "subject": "ü%"}, {"total": 7})
    headers, body = form(theirs)
    found = cloudevents.parse({name.lower(): value for name, value in headers.items()}, bytes(body))
    document = cloudevents.to_document(found)
    assert document["type"] == "order.placed" and document["payload"]["data"] == {"total": 7}
    assert document["payload"]["cloudevent"]["source"] == "/shop"
    assert document["payload"]["cloudevent"]["subject"] == "ü%"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"specversion": "0.3"}, "must be 1.0"),
        ({"id": ""}, "missing or empty"),
        ({"type": 7}, "must be a string"),
        ({"BAD-name": "x"}, "lowercase letters"),
        ({"data": 1, "data_base64": "AA=="}, "got both"),
        ({"data_base64": "*"}, "must be base64"),
        ({"data_base64": 7}, "must be a string"),
        ({f"a{n}": "x" for n in range(70)}, "at most"),
    ],
)
def test_malformed_cloudevents_are_refused(change, words):
    raw = json.dumps({**REQUIRED, **change}).encode()
    with pytest.raises(Invalid, match=words):
        cloudevents.parse({"content-type": cloudevents.STRUCTURED}, raw)


def test_binary_data_survives():
    headers = {f"ce-{name}": value for name, value in REQUIRED.items()} | {"content-type": "image/png"}
    found = cloudevents.parse(headers, b"\x89PNG")
    assert found.binary == b"\x89PNG"
    again = cloudevents.parse({"content-type": cloudevents.STRUCTURED}, cloudevents.to_json(found))
    assert again.binary == b"\x89PNG"


@pytest.mark.parametrize(("name", "text"), [("data", "x"), ("subject", "\ud800"), ("subject", "%ff")])
def test_binary_attributes_are_checked(name, text):
    """Lone surrogates come from brokers whose headers are JSON."""
    headers = {f"ce-{each}": value for each, value in {**REQUIRED, name: text}.items()}
    with pytest.raises(InvalidEnvelope, match="CloudEvent"):
        cloudevents.parse(headers, b"{}")
