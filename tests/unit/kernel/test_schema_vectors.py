"""Every stored document, accepted or refused, against the shipped schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from tests.folding import fold

from ropewalk.errors import InvalidEnvelope
from ropewalk.kernel import jcs
from ropewalk.kernel.schema import shipped as schema

FOLDER = Path(__file__).parents[3] / "vectors" / "schema"
FILES: list[dict[str, Any]] = [
    json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))
]
CASES = [
    pytest.param(file["schema"], case, id=f"{file['name']}-{case['name']}")
    for file in FILES
    for case in file["cases"]
]


def test_every_schema_of_a_document_has_vectors_both_ways():
    covered = {file["schema"] for file in FILES}
    assert covered == set(schema.names()) - {"common/ids"}
    for file in FILES:
        assert any("expect" in case for case in file["cases"]), file["name"]
        assert any("error" in case for case in file["cases"]), file["name"]


@fold(("name", "case"), CASES)
def test_document(name, case):
    if "error" not in case:
        schema.validate(name, case["input"])
        return
    with pytest.raises(InvalidEnvelope) as caught:
        schema.validate(name, case["input"])
    assert caught.value.code == case["error"]["code"]
    assert caught.value.fields == {"where": case["error"]["where"], "schema": schema.schema_id(name)}
    assert caught.value.detail.endswith(f"({name})")


NAMED = [
    pytest.param(case, id=f"{file['name']}-{case['name']}")
    for file in FILES
    for case in file["cases"]
    if "content_id" in case.get("expect", {})
]


@pytest.mark.parametrize("case", NAMED)
def test_published_examples_have_the_content_ids_computed_elsewhere(case):
    canonical = jcs.encode(case["input"])
    assert len(canonical) == case["expect"]["bytes"]
    assert f"blake3:{blake3(canonical).hexdigest()}" == case["expect"]["content_id"]
