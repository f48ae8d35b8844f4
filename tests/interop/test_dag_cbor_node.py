"""`@ipld/dag-cbor` under Node is the codec of every JavaScript peer: what we write, it must write as well."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.tools import install_npm_packages, needs

from ropewalk.errors import InvalidCbor
from ropewalk.kernel import cbor
from ropewalk.kernel.cbor import Link
from ropewalk.kernel.digest import DAG_CBOR, cid

PEERS = Path(__file__).parents[2] / "bench" / "node"
NODE = shutil.which("node")
pytestmark = [
    pytest.mark.slow,
    needs("node", "npm"),
    pytest.mark.timeout(600),  # the first run installs the package
]

WRITE_BACK = """
import { decode, encode } from "@ipld/dag-cbor"
import { readFileSync } from "node:fs"
const back = (hex) => {
  try { return Buffer.from(encode(decode(Buffer.from(hex, "hex")))).toString("hex") } catch { return "refused" }
}
process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(back)))
"""

ENCODE_DOUBLES = """
import { encode } from "@ipld/dag-cbor"
import { readFileSync } from "node:fs"
const raw = readFileSync(0)
const out = []
for (let at = 0; at < raw.length; at += 8) out.push(Buffer.from(encode(raw.readDoubleBE(at))).toString("hex"))
process.stdout.write(JSON.stringify(out))
"""


@pytest.fixture(scope="module", autouse=True)
def peers():
    install_npm_packages(PEERS, "@ipld/dag-cbor")


def node(script: str, given: bytes) -> list[str]:
    assert NODE is not None
    command = [NODE, "--input-type=module", "--eval", script]
    done = subprocess.run(command, cwd=PEERS, input=given, capture_output=True, check=True)
    answers: list[str] = json.loads(done.stdout)
    return answers


def value(chance: random.Random, depth: int = 3) -> Any:
    kinds = ["none", "bool", "int", "wide", "float", "text", "bytes", "cid bytes", "link"]
    kind = chance.choice(kinds + ["list", "map"] * 3 if depth else kinds)
    match kind:
        case "bool":
            return chance.random() < 0.5
        case "int":
            return chance.randrange(-1000, 1000)
        case "wide":
            return chance.randrange(-(2**64), 2**64) >> chance.randrange(64)
        case "float":
            return chance.choice(
                (chance.random(), float(chance.randrange(100)), chance.random() * 1e300, -0.0)
            )
        case "text":
            return "".join(chance.choice("aé\u20ac\U0001f600;\x1b") for _ in range(chance.randrange(30)))
        case "bytes":
            return chance.randbytes(chance.randrange(40))
        case "cid bytes":
            return cid(DAG_CBOR, chance.randbytes(2))
        case "link":
            return Link(cid(DAG_CBOR, chance.randbytes(2)))
        case "list":
            return [value(chance, depth - 1) for _ in range(chance.randrange(6))]
        case "map":
            keys = ["", "a", "b", "aa", "é", "\u20ac", "zzz", "a" * 24]
            return {key: value(chance, depth - 1) for key in chance.sample(keys, chance.randrange(6))}
    return None


def test_values_are_written_as_the_javascript_codec_writes_them_back():
    chance = random.Random(12)
    written = [cbor.dag_encode(value(chance)).hex() for _ in range(2000)]
    assert node(WRITE_BACK, json.dumps(written).encode()) == written


def test_doubles_are_written_as_javascript_numbers_are():
    chance = random.Random(13)
    doubles = [0.0, -0.0, 1.0, 2.0**53 - 1, 2.0**53, -(2.0**53), 2.0**45, 2.0**45 + 1, 1e21, 5e-324]
    doubles += [float(chance.randrange(-(2**55), 2**55) >> chance.randrange(55)) for _ in range(5000)]
    doubles += [chance.random() * 2 ** chance.randrange(-60, 60) for _ in range(5000)]
    answers = node(ENCODE_DOUBLES, b"".join(struct.pack(">d", number) for number in doubles))
    assert [cbor.dag_encode(number).hex() for number in doubles] == answers
    assert [cbor.dag_encode([number, b"\x01\x55\x00\x00"])[1:-5].hex() for number in doubles] == answers


def test_damaged_bytes_are_read_only_if_javascript_would_write_them():
    chance = random.Random(14)
    damaged = []
    for _ in range(3000):
        spoilt = bytearray(cbor.dag_encode(value(chance)))
        spoilt[chance.randrange(len(spoilt))] ^= 1 << chance.randrange(8)
        damaged.append(bytes(spoilt))
    for raw, answer in zip(
        damaged, node(WRITE_BACK, json.dumps([raw.hex() for raw in damaged]).encode()), strict=True
    ):
        try:
            cbor.dag_decode(raw)
        except InvalidCbor as error:
            # A CID whose parts are unusual is the one thing we refuse beyond the peer.
            assert answer != raw.hex() or error.fields["reason"] == "link without a CID", (raw.hex(), error)
        else:
            assert answer == raw.hex()
