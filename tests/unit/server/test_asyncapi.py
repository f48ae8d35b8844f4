"""The AsyncAPI document says what the code sends."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.asgi import served

import ropewalk.bridge.webhooks.run
from ropewalk.bridge.webhooks.forms import HEADERS
from ropewalk.server.http.asyncapi import FROM_SERVER, asyncapi_document
from ropewalk.stream.core.frames import (
    Ack,
    BusEvent,
    Credit,
    ErrorFrame,
    Ping,
    Pong,
    RefUpdate,
    Sub,
    Unsub,
    encode,
)

NOW = "2026-01-02T03:04:05.678Z"
FRAMES: dict[str, Any] = {
    "Subscribe": Sub(topics=("jobs.*",), since_seq=7),
    "Unsubscribe": Unsub(refs=("refs/gatos/**",)),
    "Credit": Credit(100),
    "Pong": Pong(),
    "Ack": Ack("01HF", 7, 1000, NOW),
    "RefUpdate": RefUpdate("refs/gatos/x", None, "8b1c", 8, NOW),
    "BusEvent": BusEvent("jobs", {"id": 7}, 9, NOW),
    "Ping": Ping(),
    "Error": ErrorFrame("REPLAY_EXPIRED", "gone", 1, 5, 4),
}


@pytest.mark.parametrize("title", FRAMES)
def test_frames_fit_the_asyncapi_document(title):
    message = asyncapi_document()["components"]["messages"][title]
    jsonschema.validate(json.loads(encode(FRAMES[title])), message["payload"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({}, message["payload"])


def test_asyncapi_has_every_frame_and_header():
    """Each frame of the schema is a message, and webhooks send the headers that the document lists."""
    assert FRAMES.keys() <= asyncapi_document()["components"]["messages"].keys()
    assert set(FROM_SERVER.values()) <= FRAMES.keys()
    source = Path(str(ropewalk.bridge.webhooks.run.__file__)).read_text()
    assert set(re.findall(r'"(X-GATOS-[A-Za-z-]+)"', source)) == set(HEADERS)


def test_asyncapi_is_served_and_refers_to_itself(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as client:
            document = (await client("GET", "//asyncapi.json")).json
        for ref in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)):
            found = document
            for step in ref.split("/"):
                found = found[step]
        assert document == asyncapi_document()

    asyncio.run(main())
