"""The JavaScript client: the same vectors and verdicts as Python, a real server, and a build that can be repeated."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import zstandard
from tests.interop.test_serve import envelopes
from tests.serving import Served, serving
from tests.tools import install_npm_packages, needs

import ropewalk
from ropewalk.errors import RopewalkError
from ropewalk.server.http.asyncapi import asyncapi_document

pytestmark = needs("node")
CLIENT = Path(__file__).resolve().parents[2] / "clients/js"
LIMIT_S = 240


def node(*words: str, stdin: str = "", **environment: str) -> str:
    """Run Node in the client's folder and return what it prints."""
    given = {**os.environ, **environment}
    done = subprocess.run(
        ["node", *words], cwd=CLIENT, input=stdin, env=given, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_js_types_match_the_schemas():
    node("types.mjs", "--check")


def test_js_client_agrees_with_the_vectors():
    assert "not ok" not in node("--test", "test/vectors.test.mjs")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("js")) as server:
        made = envelopes(server.folder, 5)
        for batch in (made[:1], made[1:]):
            answer = server("POST", "/channels/audit/envelopes", batch)
            assert answer.status == 201, answer
        yield server, answer.json["receipts"][-1]["envelope_id"]


def files_of(server: Served, envelope_id: str) -> dict[str, bytes]:
    """Return what a server hands out for offline verification."""
    return {
        "proof": server("GET", f"/channels/audit/envelopes/{envelope_id}/proof").body,
        "bundle": server("GET", "/channels/audit/bundle").body,
        "checkpoint": server("GET", "/channels/audit/checkpoint?host=log.example").body,
    }


def judged_by_python(folder: Path, raw: bytes, trust: Path | None) -> str:
    path = folder / "judged"
    path.write_bytes(raw)
    try:
        return str(ropewalk.verify(path, trust=trust).verdict)
    except RopewalkError:
        return "refused"


def judged_by_node(files: list[bytes], trust: bytes | None) -> list[dict[str, Any]]:
    text = [base64.b64encode(each).decode() for each in files]
    shown = None if trust is None else base64.b64encode(trust).decode()
    lines = "".join(json.dumps({"file": each, "trust": shown}) + "\n" for each in text)
    return [json.loads(line) for line in node("test/judge.mjs", stdin=lines).splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
def test_js_verdicts_are_those_of_python(served, tmp_path):
    """Files as handed out and with one changed byte lead to one verdict; a refusal counts as failed."""
    server, envelope_id = served
    trust = server("GET", "/channels/audit/trust").body
    (tmp_path / "trust.json").write_bytes(trust)
    chance = random.Random(16)
    for kind, raw in files_of(server, envelope_id).items():
        changed = [raw, raw[:-1], raw + b"\0", raw[:-1] + bytes([raw[-1] ^ 1])]
        # Decoders differ about a few bits of the packing that change no content: a bundle is changed unpacked.
        packed = kind == "bundle"
        inner = zstandard.decompress(raw) if packed else raw
        for _ in range(40):
            at = chance.randrange(len(inner))
            other = inner[:at] + bytes([inner[at] ^ (1 << chance.randrange(8))]) + inner[at + 1 :]
            changed.append(zstandard.compress(other) if packed else other)
        for given in (trust, None):
            found = judged_by_node(changed, given)
            for index, (each, answer) in enumerate(zip(changed, found, strict=True)):
                want = judged_by_python(tmp_path, each, tmp_path / "trust.json" if given else None)
                got = answer.get("verdict", "refused")
                bad = {"failed", "refused"}
                assert got == want or {got, want} <= bad, (kind, index, want, answer)


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 60)
def test_js_client_works_with_a_server(served):
    server, envelope_id = served
    found = {
        "ROPEWALK_URL": server.facts["url"],
        "ROPEWALK_CHANNEL": "audit",
        "ROPEWALK_ENVELOPE": envelope_id,
    }
    node("--experimental-websocket", "--test", "test/serve.test.mjs", **found)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_js_build_gives_the_same_bytes(tmp_path):
    """Types are checked, the committed bundle is what the sources build to, and AsyncAPI takes our document."""
    folder = tmp_path / "js"
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "dist/ropewalk.js").unlink()
    install_npm_packages(folder, "esbuild")
    for script in ("check", "build"):
        subprocess.run(["npm", "run", "--silent", script], cwd=folder, check=True, timeout=LIMIT_S)
    official = json.loads((folder / "node_modules/@asyncapi/specs/schemas/3.0.0.json").read_text())
    jsonschema.validate(asyncapi_document(), official)
    assert (folder / "dist/ropewalk.js").read_bytes() == (CLIENT / "dist/ropewalk.js").read_bytes()
