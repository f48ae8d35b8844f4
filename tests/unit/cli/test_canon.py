"""`canon` and `hash`: exact bytes, S0's content id, and refusals that name position and reason."""

from __future__ import annotations

import pytest
from blake3 import blake3


def test_canon_prints_exact_bytes_without_a_newline(ropewalk, tmp_path):
    (tmp_path / "f.json").write_text('{ "b": 1.0, "a": "\\u00e9" }')
    answer = ropewalk("canon", "f.json")
    assert (answer.code, answer.out) == (0, '{"a":"é","b":1}'.encode())


def test_canon_reads_stdin(ropewalk):
    assert ropewalk("canon", "-", stdin=b"[3, 2]").out == b"[3,2]"


def test_canon_as_json_carries_the_canonical_text(ropewalk):
    assert ropewalk("canon", "-", "--json", stdin=b"[3, 2]").json == {"canonical": "[3,2]", "bytes": 5}


def test_hash_is_blake3_of_the_canonical_bytes(ropewalk, tmp_path):
    (tmp_path / "f.json").write_text('{"b":1,"a":2}')
    expected = "blake3:" + blake3(b'{"a":2,"b":1}').hexdigest()
    assert ropewalk("hash", "f.json").text == expected + "\n"
    assert ropewalk("hash", "f.json", "--json").json == {"content_id": expected, "bytes": 13}
    assert ropewalk("--json", "hash", "f.json").json == {"content_id": expected, "bytes": 13}


BAD = {
    "duplicate key": (b'{"a":1,"a":2}', 7),
    "lone surrogate": (b'{"a":"\\ud800"}', 6),
    "NaN": (b"[NaN]", 1),
    "infinity": (b"[1e400]", 1),
    "integer": (b"[9007199254740993]", 1),
    "integer as float": (b"[9007199254740993.0]", 1),
    "byte order mark": (b"\xef\xbb\xbf{}", 0),
    "UTF-8": (b'["\xff"]', 2),
    "trailing": (b"{} {}", 3),
    "nesting": (b"[" * 129 + b"]" * 129, 128),
    "empty": (b"", 0),
}


@pytest.mark.parametrize("command", ["canon", "hash"])
@pytest.mark.parametrize("raw, position", BAD.values(), ids=BAD.keys())
def test_bad_input_ends_with_8_naming_position_and_reason(ropewalk, command, raw, position):
    answer = ropewalk(command, "-", "--json", stdin=raw)
    assert answer.code == 8
    problem = answer.json
    assert problem["code"] == "InvalidJson"
    assert problem["position"] == position
    assert problem["reason"] and problem["detail"] and problem["advice"]
    plain = ropewalk(command, "-", stdin=raw)
    assert (plain.code, plain.out) == (8, b"")
    assert "InvalidJson" in plain.err and str(position) in plain.err


def test_a_missing_file_ends_with_3(ropewalk):
    answer = ropewalk("hash", "nothing.json")
    assert answer.code == 3
    assert "nothing.json" in answer.err


def test_a_directory_is_no_file(ropewalk, tmp_path):
    assert ropewalk("hash", str(tmp_path)).code == 3
