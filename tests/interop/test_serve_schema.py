"""Every operation of the OpenAPI document, called with what its schemas allow and with what they do not."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serving import Served, call, serving
from tests.unit.ledger.making import observed
from tests.waiting import LIMIT_S

from ropewalk.server.http.app import make_routes
from ropewalk.server.http.openapi import openapi_document

DOCUMENT: dict[str, Any] = openapi_document(make_routes(None))
OPERATIONS = [
    pytest.param(method, path, operation, id=operation["operationId"])
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if operation["operationId"] != "stream_events"  # it does not end
]
EVENT = {"type": "t", "payload": {"n": 1}}
KNOWN = ("demo", "shiplog/demo", "messages/demo", "ledger/demo", "gossip/demo", observed(1).hex_id, "jobs")
TEXTS = st.sampled_from(KNOWN) | st.text(max_size=40) | st.sampled_from(["0" * 26, "f" * 64, "../x", "\x00"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schema")
    with serving(folder, limit_s=1_200) as found:
        assert found("POST", "/shiplog/demo/events", EVENT).status == 201
        assert found("POST", "/messages?topic=demo", EVENT).status == 201
        assert found("POST", "/gossip/demo/messages", {"payload": 1}).status == 201
        made = found("POST", "/channels/demo/envelopes", json.loads(observed(1).raw))
        assert made.status == 201, made
        assert call(folder, "consumer", "ls").returncode == 0
        yield found


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """What a schema allows, or nearly: bounds and types are crossed now and then."""
    if "$ref" in schema:
        return values(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "oneOf" in schema:
        return st.one_of(*map(values, schema["oneOf"]))
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        required = set(schema.get("required", ()))
        fields = {name: values(each) for name, each in schema["properties"].items()}
        must = {name: each for name, each in fields.items() if name in required}
        may = {name: each for name, each in fields.items() if name not in required}
        return st.fixed_dictionaries(must, optional=may) | JSON
    if kind == "array":
        return st.lists(values(schema.get("items", {})), max_size=3)
    simple = {"integer": st.integers(-3, 600) | st.integers(), "string": TEXTS, "boolean": st.booleans()}
    return simple.get(str(kind), JSON) | JSON


def written(value: Any) -> str:
    return quote(value if isinstance(value, str) else json.dumps(value), safe="")


@st.composite
def requests(draw: Any, path: str, operation: dict[str, Any]) -> tuple[str, bytes | None, dict[str, str]]:
    """A request to one operation."""
    query: list[str] = []
    headers: dict[str, str] = {}
    for parameter in operation.get("parameters", ()):
        value = draw(values(parameter["schema"]))
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", written(value) or "-")
        elif parameter["in"] == "header":
            headers |= {parameter["name"]: written(value)} if draw(st.booleans()) else {}
        elif parameter.get("required") or draw(st.booleans()):
            several = value if isinstance(value, list) else [value]
            query += [f"{parameter['name']}={written(each)}" for each in several]
    body = None
    if content := operation.get("requestBody", {}).get("content"):
        kind = draw(st.sampled_from([*content, "text/plain"]))
        schema = content.get(kind, {}).get("schema", {})
        body = (
            draw(st.binary(max_size=60)) if "json" not in kind else json.dumps(draw(values(schema))).encode()
        )
        headers["Content-Type"] = kind
    return path + (f"?{'&'.join(query)}" if query else ""), body, headers


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS)
def test_answers_are_as_the_document_says(server: Served, method, path, operation):
    """No request makes the server fail; a refusal is a problem document, an answer has the documented form."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=LIMIT_S)

    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(request=requests(path, operation))
    def ask(request: tuple[str, bytes | None, dict[str, str]]) -> None:
        target, body, headers = request
        connection.request(method.upper(), target, body, headers)
        answer = connection.getresponse()
        content, kind = answer.read(), answer.getheader("content-type", "")
        assert answer.status < 500, content
        if answer.status >= 400:
            assert kind == "application/problem+json" and json.loads(content)["code"], content
            return
        described = operation["responses"].get(str(answer.status), {}).get("content", {})
        schema = described.get("application/json", {}).get("schema")
        if schema is not None and kind.startswith("application/json"):
            whole = {**schema, "components": DOCUMENT["components"]}
            jsonschema_rs.validate(whole, json.loads(content))

    try:
        ask()
    finally:
        connection.close()
    assert "Traceback" not in server.errors()
