"""Canonical CBOR, both dialects: every fault a decoder might overlook, and the values that have one spelling.

The bytes are written by hand or by plain concatenation here, never by the code they test. `core` is deterministic
CBOR over the JSON model and byte strings, `dag` is DAG-CBOR. Values stand in DAG-JSON: byte strings as
`{"/": {"bytes": base64 without padding}}`, links as `{"/": CID}`.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

__all__ = ["generate"]

BOTH = ("core", "dag")
CID = "01711220" + "00" * 32
CID_TEXT = "bafyreiaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
CID_V0 = "1220" + "00" * 32
CID_V0_TEXT = "QmNLei78zWmzUdbeRB3CiUfAizWUrbeeZh5K1rhAQKCh51"


@dataclass(frozen=True)
class Good:
    """Bytes with a value, canonical in these dialects."""

    name: str
    raw: str
    value: Any
    dialects: tuple[str, ...] = BOTH
    why: str = ""


@dataclass(frozen=True)
class Bad:
    """Bytes that these dialects refuse, and why."""

    name: str
    raw: str
    reason: str
    dialects: tuple[str, ...] = BOTH
    why: str = ""


@dataclass(frozen=True)
class Rule:
    file: str
    why: str
    cases: tuple[Good | Bad, ...]


def octets(raw: str) -> dict[str, Any]:
    return {"/": {"bytes": base64.b64encode(bytes.fromhex(raw)).decode().rstrip("=")}}


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth > 1 else []


LONG = "head is longer than necessary"
CUT = "ends in the middle of an item"

RULES = (
    Rule(
        "long_heads",
        "A head has one shortest form; libipld 3.5 reads longer ones.",
        (
            Good("shortest_23", "17", 23),
            Good("shortest_24", "1818", 24),
            Good("shortest_256", "190100", 256),
            Good("shortest_65536", "1a00010000", 65536),
            Good("shortest_4294967296", "1b0000000100000000", 4294967296),
            Bad("int_23_in_two_bytes", "1817", LONG),
            Bad("int_255_in_three_bytes", "1900ff", LONG),
            Bad("int_65535_in_five_bytes", "1a0000ffff", LONG),
            Bad("int_in_nine_bytes", "1b00000000ffffffff", LONG),
            Bad("negative", "3817", LONG),
            Bad("text_length", "780161", LONG),
            Bad("bytes_length", "580161", LONG),
            Bad("list_length", "980100", LONG),
            Bad("map_length", "b801616100", LONG),
            Bad("map_key_length", "a178016100", LONG),
            Bad("link_tag", "d9002a582500" + CID, LONG, ("dag",)),
            Bad("link_length", "d82a59002500" + CID, "link without a CID", ("dag",)),
        ),
    ),
    Rule(
        "indefinite_lengths",
        "Chunked strings and open containers have many spellings.",
        (
            Bad("list", "9fff", "indefinite length"),
            Bad("map", "bfff", "indefinite length"),
            Bad("bytes", "5f4101ff", "indefinite length"),
            Bad("text", "7f6161ff", "indefinite length"),
            Bad("inside", "819fff", "indefinite length"),
            Bad("reserved_head", "1c", "reserved head"),
            Bad("lone_break", "ff", "break without a beginning"),
        ),
    ),
    Rule(
        "map_keys",
        "Keys are unique text, shorter first, then bytewise; so one map has one spelling.",
        (
            Good("length_first", "a2617a01626161f6", {"z": 1, "aa": None}),
            Good("bytewise", "a2626162f662c3a901", {"ab": None, "é": 1}),
            Good("empty_key", "a16000", {"": 0}),
            Good(
                "astral_after_private_use",
                "a263ee80800164f09f988002",
                {"\ue000": 1, "😀": 2},
                why="UTF-16 order would swap them",
            ),
            Bad("unsorted", "a2616201616102", "map keys are not in order"),
            Bad("longer_first", "a262616101617a02", "map keys are not in order"),
            Bad("duplicate", "a2616101616102", "duplicate map key"),
            Bad("duplicate_empty", "a260016002", "duplicate map key"),
            Bad("integer_key", "a10102", "map key is not text"),
            Bad("bytes_key", "a1416102", "map key is not text"),
            Bad("map_as_key", "a1a002", "map key is not text"),
        ),
    ),
    Rule(
        "float_widths",
        "DAG-CBOR floats have 64 bits, deterministic CBOR floats are as short as their value allows.",
        (
            Good("half_16", "f93e00", 1.5, ("core",)),
            Good("half_64", "fb3ff8000000000000", 1.5, ("dag",)),
            Good("tiny_16", "f90001", 5.960464477539063e-08, ("core",)),
            Good("wide_32", "fa47c35040", 100000.5, ("core",)),
            Good("least_32", "fa00000001", 1.401298464324817e-45, ("core",)),
            Good("tenth_64", "fb3fb999999999999a", 0.1),
            Good("largest_64", "fb7fefffffffffffff", 1.7976931348623157e308),
            Bad("half_32_core", "fa3fc00000", "float of 32 bits must have 16", ("core",)),
            Bad("half_64_core", "fb3ff8000000000000", "float of 64 bits must have 16", ("core",)),
            Bad("wide_64_core", "fb40f86a0800000000", "float of 64 bits must have 32", ("core",)),
            Bad("half_16_dag", "f93e00", "float of 16 bits must have 64", ("dag",)),
            Bad("half_32_dag", "fa3fc00000", "float of 32 bits must have 64", ("dag",)),
        ),
    ),
    Rule(
        "integral_floats",
        "A float that is a safe integer is written as one; 1 and 1.0 are one number.",
        (
            Bad("one_16", "f93c00", "integer written as a float"),
            Bad("one_32", "fa3f800000", "integer written as a float"),
            Bad("one_64", "fb3ff0000000000000", "integer written as a float"),
            Bad("zero_64", "fb0000000000000000", "integer written as a float"),
            Bad("negative_zero_16", "f98000", "integer written as a float"),
            Bad("negative_zero_64", "fb8000000000000000", "integer written as a float"),
            Bad("largest_safe", "fb433fffffffffffff", "integer written as a float"),
            Bad("inside", "82f6fbc000000000000000", "integer written as a float"),
            Good("two_to_53_dag", "fb4340000000000000", 9007199254740992.0, ("dag",)),
            Bad("two_to_53_core", "fa5a000000", "integer out of range", ("core",)),
            Bad("below_1e21_core", "fb442b1ae4d6e2ef4f", "integer out of range", ("core",)),
            Good("from_1e21", "fb444b1ae4d6e2ef50", 1e21),
            Good(
                "bytes_that_look_like_one",
                "49fb3ff0000000000000",
                octets("fb3ff0000000000000"),
                why="a guard that searches the bytes must not be fooled",
            ),
        ),
    ),
    Rule(
        "not_finite",
        "NaN and the infinities have no place in either model.",
        (
            Bad("nan_16", "f97e00", "not a finite number"),
            Bad("nan_64", "fb7ff8000000000000", "not a finite number"),
            Bad("infinity_16", "f97c00", "not a finite number"),
            Bad("infinity_64", "fb7ff0000000000000", "not a finite number"),
            Bad("minus_infinity_32", "faff800000", "not a finite number"),
        ),
    ),
    Rule(
        "integers_out_of_range",
        "The JSON model ends at ±(2^53−1), DAG-CBOR at 64 bits.",
        (
            Good("safe_max", "1b001fffffffffffff", 9007199254740991),
            Good("safe_min", "3b001ffffffffffffe", -9007199254740991),
            Bad("beyond_safe_max", "1b0020000000000000", "integer out of range", ("core",)),
            Bad("beyond_safe_min", "3b001fffffffffffff", "integer out of range", ("core",)),
            Good("int64_max", "1bffffffffffffffff", 18446744073709551615, ("dag",)),
            Good("int64_min", "3bffffffffffffffff", -18446744073709551616, ("dag",)),
            Bad("bignum", "c249010000000000000000", "tag 2"),
            Good("text_with_semicolon", "693b7878787878787878", ";xxxxxxxx", why="0x3b is also a semicolon"),
        ),
    ),
    Rule(
        "tags",
        "No tag but the link of DAG-CBOR.",
        (
            Bad("date", "c06161", "tag 0"),
            Bad("decimal", "c48221196ab3", "tag 4"),
            Bad("self_described", "d9d9f700", "tag 55799"),
            Bad("shared_reference", "d81c81d81d00", "tag 28"),
            Bad("link_in_core", "d82a582500" + CID, "tag 42", ("core",)),
        ),
    ),
    Rule(
        "simple_values",
        "Only false, true and null.",
        (
            Good("false", "f4", False),
            Good("true", "f5", True),
            Good("null", "f6", None),
            Bad("undefined", "f7", "undefined"),
            Bad("simple_16", "f0", "simple value"),
            Bad("simple_255", "f8ff", "simple value"),
            Bad("false_in_two_bytes", "f814", LONG),
        ),
    ),
    Rule(
        "bad_utf8",
        "Text is UTF-8, without surrogates and overlong forms; replacing bad bytes would make two texts one.",
        (
            Bad("lone_ff", "61ff", "text is not UTF-8"),
            Bad("surrogate", "63eda080", "text is not UTF-8"),
            Bad("overlong", "62c080", "text is not UTF-8"),
            Bad("beyond_unicode", "64f4908080", "text is not UTF-8"),
            Bad("key", "a161ff00", "text is not UTF-8"),
        ),
    ),
    Rule(
        "links",
        "Tag 42 holds a zero byte and a whole CID, nothing more.",
        (
            Good("version_1", "d82a582500" + CID, {"/": CID_TEXT}, ("dag",)),
            Good("version_0", "d82a582300" + CID_V0, {"/": CID_V0_TEXT}, ("dag",)),
            Bad("no_zero_byte", "d82a5824" + CID, "link without a CID", ("dag",)),
            Bad("empty", "d82a40", "link without a CID", ("dag",)),
            Bad("zero_byte_only", "d82a4100", "link without a CID", ("dag",)),
            Bad("text_instead", "d82a782500" + CID, "link without a CID", ("dag",)),
            Bad("digest_cut", "d82a45000171121b", "link without a CID", ("dag",)),
            Bad(
                "byte_after_the_digest",
                "d82a582600" + CID + "00",
                "link without a CID",
                ("dag",),
                "libipld 3.5 reads it",
            ),
            Bad("version_2", "d82a58250002" + CID[2:], "link without a CID", ("dag",)),
            Bad("long_varint", "d82a58260001f100" + CID[4:], "link without a CID", ("dag",)),
            Bad("cut", "d82a5825000171", CUT, ("dag",)),
            Bad("nothing_after_the_tag", "d82a", CUT, ("dag",)),
        ),
    ),
    Rule(
        "bytes_like_a_cid",
        "A byte string that reads like a CID stays a byte string; libipld 3.5 would write it as a link. About one in "
        "seventeen gossip keys of clock 1 reads like one.",
        (
            Good("cid_as_bytes", "5824" + CID, octets(CID)),
            Good("cid_v0_as_bytes", "5822" + CID_V0, octets(CID_V0)),
            Good("gossip_key", "8154" + "0155120e" + "00" * 16, [octets("0155120e" + "00" * 16)]),
            Good("shortest", "4401550000", octets("01550000")),
            Good(
                "beside_its_link",
                "825824" + CID + "d82a582500" + CID,
                [octets(CID), {"/": CID_TEXT}],
                ("dag",),
            ),
            Good("tag_head_inside_bytes", "42d82a", octets("d82a")),
        ),
    ),
    Rule(
        "one_item",
        "The bytes hold one item, all of it, and nothing after it.",
        (
            Bad("nothing", "", CUT),
            Bad("head_cut", "19ff", CUT),
            Bad("text_cut", "6361", CUT),
            Bad("bytes_cut", "4361", CUT),
            Bad("float_cut", "fb3ff8", CUT),
            Bad("list_cut", "8200", CUT),
            Bad("map_without_value", "a16161", CUT),
            Bad("second_item", "0000", "bytes after the end"),
            Bad("empty_list_and_more", "8000", "bytes after the end"),
        ),
    ),
    Rule(
        "nesting",
        "128 containers inside one another, no more: readers recurse.",
        (
            Good("lists_128", "81" * 127 + "80", nested(128)),
            Bad("lists_129", "81" * 128 + "80", "nested deeper than 128"),
            Bad("lists_129_with_item", "81" * 129 + "00", "nested deeper than 128"),
            Bad("maps_129", "a16161" * 128 + "a0", "nested deeper than 128"),
            Bad("lists_2000", "81" * 2000 + "00", "nested deeper than 128"),
        ),
    ),
    Rule(
        "claimed_lengths",
        "A length is a claim: memory follows the bytes that are there.",
        (
            Bad("list_of_2_to_31", "9a7fffffff", CUT),
            Bad("list_of_2_to_64", "9bffffffffffffffff", CUT),
            Bad("map_of_2_to_63", "bb7fffffffffffffff", CUT),
            Bad("bytes_of_2_to_64", "5bffffffffffffffff", CUT),
            Bad("text_of_2_to_63", "7b7fffffffffffffff", CUT),
            Bad(
                "lists_that_share_one_rest",
                "9903e8" * 40 + "00" * 1000,
                CUT,
                why="each list alone fits what is left, all together do not; libipld 3.5 reserves room for each",
            ),
            Bad("maps_that_share_one_rest", "b901f460" * 40 + "00" * 1000, CUT),
        ),
    ),
)


def generate() -> dict[str, object]:
    """One file per rule; every case is given once for each dialect it holds in."""
    return {
        f"cbor/{rule.file}.json": {
            "name": rule.file,
            "why": rule.why,
            "cases": [_case(case, dialect) for case in rule.cases for dialect in case.dialects],
        }
        for rule in RULES
    }


def _case(case: Good | Bad, dialect: str) -> dict[str, Any]:
    made: dict[str, Any] = {"name": f"{case.name}_{dialect}" if len(case.dialects) > 1 else case.name}
    if case.why:
        made["why"] = case.why
    made["input"] = {"dialect": dialect, "hex": case.raw}
    if isinstance(case, Bad):
        made["error"] = {"code": "InvalidCbor", "reason": case.reason}
    else:
        made["expect"] = {"value": case.value}
    return made
