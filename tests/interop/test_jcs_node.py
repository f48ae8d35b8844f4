"""ECMAScript itself is the oracle: what Node prints for a double is what RFC 8785 means."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

from tests.tools import needs
from vectors.generate.jcs import double, sample

from ropewalk.errors import InvalidJson
from ropewalk.kernel import jcs

NODE = shutil.which("node")
pytestmark = needs("node")  # the stored sample in vectors/jcs/numbers.json covers it as well

PRINT_DOUBLES = """
const raw = require("fs").readFileSync(0);
const out = [];
for (let at = 0; at < raw.length; at += 8) out.push(JSON.stringify(raw.readDoubleBE(at)));
process.stdout.write(out.join("\\n"));
"""

# JSON.parse keeps the last of two equal keys and sort() compares UTF-16 units: all RFC 8785 asks for.
CANONICALISE_LINES = """
const write = (value) => {
  if (Array.isArray(value)) return "[" + value.map(write).join(",") + "]";
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return "{" + Object.keys(value).sort().map((key) => JSON.stringify(key) + ":" + write(value[key])).join(",") + "}";
};
const lines = require("fs").readFileSync(0, "utf8").split("\\n");
process.stdout.write(lines.map((line) => write(JSON.parse(line))).join("\\n"));
"""


def node(script: str, given: bytes) -> list[str]:
    assert NODE is not None
    done = subprocess.run([NODE, "-e", script], input=given, capture_output=True, check=True, timeout=50)
    return done.stdout.decode().split("\n")


def test_at_least_200_000_doubles_are_printed_as_node_prints_them():
    bits = [each for group in sample(20_250, 51_000).values() for each in group]
    assert len(bits) >= 200_000
    texts = node(PRINT_DOUBLES, b"".join(each.to_bytes(8, "big") for each in bits))
    wrong = [
        f"{each:016x}: {jcs.encode_foreign(double(each))!r}, node {text}"
        for each, text in zip(bits, texts, strict=True)
        if jcs.encode_foreign(double(each)) != text.encode()
    ]
    assert not wrong, wrong[:10]


def test_strict_numbers_are_the_same_ones():
    for each in [bits for group in sample(7, 2_000).values() for bits in group]:
        value = double(each)
        try:
            strict = jcs.encode(value)
        except InvalidJson:
            assert value.is_integer()
            continue
        assert strict == jcs.encode_foreign(value)


def test_the_stored_sample_is_what_node_prints():
    path = Path(__file__).parents[2] / "vectors" / "jcs" / "numbers.json"
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    bits = "".join(each for case in cases for each in case["input"]["bits"])
    assert node(PRINT_DOUBLES, bytes.fromhex(bits)) == [
        each for case in cases for each in case["expect"]["text"]
    ]


def test_documents_are_canonicalised_as_node_would():
    chance = random.Random(3)  # a fixed sample
    letters = [
        "a",
        "B",
        "é",
        "\u2028",
        "\x00",
        "\n",
        '"',
        "\\",
        "\ud7ff",
        "\ue000",
        "\uffff",
        "\U00010000",
        "😀",
    ]

    def text() -> str:
        return "".join(chance.choices(letters, k=chance.randrange(4)))

    def value(room: int) -> Any:
        match chance.randrange(7 if room else 4):
            case 0:
                return text()
            case 1:
                return struct.unpack(">d", bytes([chance.randrange(0x40)]) + chance.randbytes(7))[0]
            case 2:
                return chance.randrange(-(10**9), 10**9) / chance.choice((1, 2, 10, 1000))
            case 3:
                return chance.choice((None, True, False, 0, 2**53 + 1, -0.0))
            case 4:
                return [value(room - 1) for _ in range(chance.randrange(4))]
            case _:
                return {text(): value(room - 1) for _ in range(chance.randrange(5))}

    lines = [json.dumps(value(5), ensure_ascii=chance.random() < 0.5).encode() for _ in range(5_000)]
    for raw, canonical in zip(lines, node(CANONICALISE_LINES, b"\n".join(lines)), strict=True):
        assert jcs.encode_foreign(jcs.parse_foreign(raw)) == canonical.encode()
