"""Names: one spelling each, and no digest that could serve two purposes."""

from __future__ import annotations

import ast
import json
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk
from ropewalk import errors
from ropewalk.errors import InvalidDigest
from ropewalk.kernel import digest, multiformats
from ropewalk.kernel.digest import DAG_CBOR, RAW, SHA2_256, Tag

VECTORS = Path(__file__).parents[3] / "vectors"
SOURCES = sorted(Path(ropewalk.__path__[0]).rglob("*.py"))


def cases(path):
    stored = json.loads((VECTORS / path).read_text(encoding="utf-8"))
    return [pytest.param(case, id=case["name"]) for case in stored["cases"]]


# ---- tags ----


def test_no_tag_begins_with_another():
    tags = [bytes(tag) for tag in Tag]
    assert len(set(tags)) == len(tags)
    clashes = [(one, other) for one, other in permutations(tags, 2) if other.startswith(one)]
    assert not clashes


def test_every_tag_says_what_it_is_for():
    assert all(tag.purpose and tag.isascii() for tag in Tag)
    assert len({tag.purpose for tag in Tag}) == len(Tag)


def test_the_vectors_know_every_tag():
    stored = json.loads((VECTORS / "digest" / "tags.json").read_text(encoding="utf-8"))
    known = {case["name"]: case["input"].encode() for case in stored["cases"]}
    assert known == {tag.name: tag.value for tag in Tag}, (
        "write a new tag also into vectors/generate/digest.py"
    )


@pytest.mark.parametrize("case", cases("digest/tags.json"))
def test_tagged_is_blake3_of_tag_and_parts(case):
    tag = Tag[case["name"]]
    assert digest.tagged(tag, b"\0\1\2").hex() == case["expect"]
    assert digest.tagged(tag, b"\0", b"", b"\1\2").hex() == case["expect"]
    assert digest.blake3(tag + b"\0\1\2").hex() == case["expect"]


def literals(path):
    """Every text or bytes literal of a module that is not a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str | bytes)
            and id(node) not in docstrings
        ):
            text = node.value
            yield node.lineno, text.decode("latin-1") if isinstance(text, bytes) else text


def test_tags_are_written_in_one_table_only():
    tags = [tag.value.decode() for tag in Tag]
    families = {tag.split(":", 1)[0] + ":" for tag in tags if tag.startswith("ea:")}
    sought = (*tags, *(f'"{family}' for family in families))
    strays = [
        f"{path.name}:{line} {text!r}"
        for path in SOURCES
        if path.name != "digest.py" or path.parent.name != "kernel"
        for source in [path.read_text(encoding="utf-8")]
        if any(each in source for each in sought)  # to parse all takes seconds
        for line, text in literals(path)
        if any(tag in text for tag in tags) or any(text.startswith(family) for family in families)
    ]
    assert not strays, "a domain tag outside kernel/digest.py: " + ", ".join(strays)


# ---- content ids ----


@pytest.mark.parametrize("case", cases("digest/content_id.json"))
def test_content_id_names_the_bytes(case):
    raw = bytes.fromhex(case["input"])
    name = digest.content_id(raw)
    assert name == case["expect"]
    assert digest.parse_content_id(name) == digest.blake3(raw)


def judge(case, act):
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            act(case["input"])
    else:
        assert act(case["input"]).hex() == case["expect"]


@pytest.mark.parametrize("case", cases("digest/content_id_text.json"))
def test_content_id_has_one_spelling(case):
    judge(case, digest.parse_content_id)


def test_sha256_is_sha256():
    assert digest.sha256(b"abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# ---- CIDs ----


@pytest.mark.parametrize("case", cases("digest/cid.json"))
def test_cid_names_the_bytes(case):
    given, expect = case["input"], case["expect"]
    binary = digest.cid(given["codec"], bytes.fromhex(given["bytes"]))
    assert binary.hex() == expect["cid"]
    assert digest.cid_text(binary) == expect["text"]
    parts = digest.split_cid(binary)
    assert (parts.version, parts.codec, parts.hash_code) == (1, given["codec"], SHA2_256)
    assert parts.digest == digest.sha256(bytes.fromhex(given["bytes"]))


@pytest.mark.parametrize("case", cases("digest/cid_text.json"))
def test_cid_text_has_one_spelling(case):
    judge(case, digest.parse_cid)
    if "expect" in case:
        assert digest.cid_text(bytes.fromhex(case["expect"])) == case["input"]


def test_cids_of_gossiplog_are_ours():
    stored = json.loads((VECTORS / "gossiplog" / "v0.6-messages.json").read_text(encoding="utf-8"))
    for message in stored["messages"]:
        binary = digest.cid(DAG_CBOR, bytes.fromhex(message["message_cbor"]))
        assert binary.hex() == message["cid_bytes"]
        assert digest.cid_text(binary) == message["cid"]
        assert digest.parse_cid(message["cid"]) == binary


def test_a_very_long_text_is_refused_before_it_is_decoded():
    with pytest.raises(InvalidDigest):
        digest.parse_cid("Qm" + "1" * 1_000_000)  # base58 costs the square of the length


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=140))
def test_any_bytes_are_a_cid_with_one_text_or_none(raw):
    for candidate in (raw, b"\x01\x71\x12\x20" + raw, b"\x12\x20" + raw):
        try:
            text = digest.cid_text(candidate)
        except InvalidDigest:
            continue
        assert digest.parse_cid(text) == candidate


# ---- spellings ----

FORMS = {
    "base58": (multiformats.base58_encode, multiformats.base58_decode),
    "base32": (multiformats.base32_encode, multiformats.base32_decode),
    "base64": (multiformats.base64_encode, multiformats.base64_decode),
}


@pytest.mark.parametrize("case", cases("digest/spellings.json"))
def test_spellings_go_both_ways(case):
    form = case["input"]["form"]
    if form == "varint":
        number = int(case["input"]["number"])
        assert multiformats.varint_encode(number).hex() == case["expect"]
        raw = bytes.fromhex(case["expect"])
        assert multiformats.varint_decode(b"!" + raw + b"?", 1) == (number, 1 + len(raw))
    else:
        encode, decode = FORMS[form]
        raw = bytes.fromhex(case["input"]["bytes"])
        assert encode(raw) == case["expect"]
        assert decode(case["expect"]) == raw


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(sorted(FORMS)), st.binary(max_size=60), st.text(max_size=40))
def test_decoding_accepts_only_what_encoding_gives(form, raw, text):
    encode, decode = FORMS[form]
    assert decode(encode(raw)) == raw
    try:
        found = decode(text)
    except InvalidDigest:
        return
    assert encode(found) == text


@pytest.mark.parametrize("number", [-1, 2**63])
def test_varints_have_63_bits(number):
    with pytest.raises(InvalidDigest):
        multiformats.varint_encode(number)


@pytest.mark.parametrize("raw", ["", "80", "8000", "ff" * 9, "ff" * 9 + "01", "8180808000"])
def test_varints_end_and_are_minimal(raw):
    with pytest.raises(InvalidDigest):
        multiformats.varint_decode(bytes.fromhex(raw))


def test_base58_of_a_very_long_text_is_refused():
    with pytest.raises(InvalidDigest):
        multiformats.base58_decode("z" * 257)


def test_parts_of_a_version_0_cid():
    binary = digest.parse_cid(digest.cid_text(b"\x12\x20" + bytes(32)))
    assert digest.split_cid(binary) == digest.Cid(0, digest.DAG_PB, SHA2_256, bytes(32))
    assert digest.split_cid(digest.cid(RAW, b"")).version == 1
