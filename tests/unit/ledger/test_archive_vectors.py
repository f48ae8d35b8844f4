"""The manifests of vectors/archive/, held against our reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropewalk import errors
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.archive.manifest import ArchiveChain, check_manifest_signature, parse_archive_manifest

FILE = Path(__file__).parents[3] / "vectors" / "archive" / "chain.json"


def follow(given: dict[str, Any]) -> dict[str, Any]:
    chain, signer = ArchiveChain(), PublicKey.from_json(given["signer"])
    for archive in given["archives"]:
        raw = archive["manifest"].encode()
        manifest = parse_archive_manifest(raw)
        check_manifest_signature(raw, archive["signature"].encode(), signer)
        chain.follow(manifest, raw)
    return {"blocks": chain.height, "outer_root": chain.outer_root.hex()}


@pytest.mark.parametrize("case", json.loads(FILE.read_bytes())["cases"], ids=lambda case: case["name"])
def test_case(case):
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            follow(case["input"])
    else:
        assert follow(case["input"]) == case["expect"]
