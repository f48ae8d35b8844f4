"""A client in another language, made from `ledger.proto` alone by Node's gRPC packages."""

from __future__ import annotations

import asyncio
import json
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
from tests.tools import install_npm_packages, needs
from tests.unit.ledger.certifying import Authority
from tests.unit.ledger.making import NODE, observed
from tests.waiting import LIMIT_S

from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.proof.proof import parse_proof
from ropewalk.ledger.remote.server import LedgerServer

HERE = Path(__file__).parent / "grpc_node"
PROTO = files("ropewalk") / "schemas/v1/ledger/ledger.proto"


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs("node", "npm")
def test_node_client_from_proto_appends_and_proves(tmp_path):
    install_npm_packages(HERE, "@grpc/grpc-js")
    authority = Authority(tmp_path)
    server_files, client_files = authority.files("server"), authority.files("client")
    create_channel(tmp_path, "audit", "node", NODE.public)
    sent = [observed(i).raw for i in range(20)]

    async def main() -> bytes:
        async with LedgerServer(
            tmp_path, lambda _channel: [NODE], port=None, files=server_files, grpc=("127.0.0.1", 0)
        ) as server:
            process = await asyncio.create_subprocess_exec(
                "node", "client.mjs", str(PROTO), server.url.removeprefix("grpc://"), "audit",
                str(authority.roots), str(client_files.certificate), str(client_files.key),
                cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            out, err = await asyncio.wait_for(process.communicate(b"\n".join([*sent, b"{}"])), LIMIT_S)
            assert process.returncode == 0, err.decode()
            return out

    said = json.loads(asyncio.run(main()))
    assert said["ids"] == [observed(i).hex_id for i in range(20)]
    assert said["problems"] == ["InvalidEnvelope"] and said["envelopes"] == 20
    assert [line.encode() for line in said["lines"] if "merkle_root" not in line] == sent
    assert parse_proof(said["proof"].encode()).envelope.raw == sent[0]
    assert said["refused"]["code"] == 5 and "ea.ledger.v1" in said["refused"]["details"]
