"""A client that a foreign generator makes from the OpenAPI document works against a real server."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.serving import call, serving
from tests.tools import skip_or_fail
from tests.waiting import LIMIT_S

GENERATOR = Path(sys.executable).with_name("openapi-python-client")


@pytest.mark.slow
def test_generated_client_works(tmp_path, monkeypatch):
    if not GENERATOR.exists():
        skip_or_fail("openapi-python-client is not installed; the extra `test` has it")
    monkeypatch.syspath_prepend(str(tmp_path))
    with serving(tmp_path) as server:
        (tmp_path / "openapi.json").write_bytes(server("GET", "/openapi.json").body)
        done = subprocess.run(
            [GENERATOR, "generate", "--path", "openapi.json", "--output-path", "made_client", "--meta", "none"],
            cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        with importlib.import_module("made_client").Client(base_url=server.facts["url"]) as client:

            def route(name: str) -> Any:
                return importlib.import_module(f"made_client.api.{name}").sync

            def model(name: str, value: object) -> Any:
                module, _, kind = name.partition(":")
                return getattr(importlib.import_module(f"made_client.models.{module}"), kind).from_dict(value)

            event = {"type": "t", "payload": {"n": 1}}
            append = route("git_logs.append_events")
            one = append(
                "demo", client=client, body=model("append_events_body_type_0:AppendEventsBodyType0", event)
            )
            item = model("append_events_body_type_1_item:AppendEventsBodyType1Item", event)
            many = append("demo", client=client, body=[item, item])
            assert one.ns == "demo" and len(many.receipts) == 2
            page = route("git_logs.read_events")("demo", client=client, limit=2)
            assert [each.ulid for each in page.events] == [one.ulid, many.receipts[0].ulid]
            rest = route("git_logs.read_events")("demo", client=client, since=page.next_since)
            assert [each.ulid for each in rest.events] == [many.receipts[1].ulid]
            assert route("git_logs.show_event")("demo", one.ulid, client=client).content_id == one.content_id
            problem = route("git_logs.read_events")("missing", client=client)
            assert (problem.status, problem.code) == (404, "NotFound")
            message = model("publish_message_body_type_0:PublishMessageBodyType0", event)
            sent = route("git_logs.publish_message")(client=client, topic="jobs/new", body=message)
            assert route("git_logs.read_messages")(client=client, topic="jobs/new").next_since == sent.ulid
            assert call(tmp_path, "ledger", "create", "--channel", "audit").returncode == 0
            assert route("ledger.list_channels")(client=client).channels == ["audit"]
            assert route("ledger.show_channel")("audit", client=client).envelopes == 0
            said = model("append_gossip_body:AppendGossipBody", {"payload": {"text": "hello"}})
            assert route("gossip_and_verification.append_gossip")("chat", client=client, body=said).clock == 1
            report = route("gossip_and_verification.verify_log")(client=client, log="shiplog/demo")
            assert report.ok is True and route("operation.show_health")(client=client).status == "ok"
