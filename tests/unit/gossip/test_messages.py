"""Signed messages of both profiles, against what the JavaScript packages wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.folding import fold
from tests.unit.gossip.conftest import memory_log

from ropewalk.errors import (
    BrokenLink,
    Invalid,
    InvalidCbor,
    InvalidKey,
    RangeExceeded,
    RopewalkError,
    SigInvalid,
    TooLarge,
)
from ropewalk.gossip.core import dag_json, profiles
from ropewalk.gossip.core.ids import CLOCKS, Key, id_of, key_of
from ropewalk.gossip.core.message import (
    MESSAGE_BYTES_MAX,
    GossipMessage,
    GossipSignature,
    assemble,
    check_topic,
    cid_of,
    decode,
    sign,
    verify,
)
from ropewalk.gossip.core.profiles import PARENTS_MAX, PROFILES, V06, V13, Parts
from ropewalk.kernel import cbor
from ropewalk.kernel.digest import sha256
from ropewalk.kernel.keys import SigningKey

VECTORS = Path(__file__).parents[3] / "vectors" / "gossiplog"
BOTH = pytest.mark.parametrize("profile", [V06, V13], ids=lambda profile: profile.name)
TOPIC = "com.example"
KEY = SigningKey("ed25519", bytes(range(32)))


def vector(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))


def signed_vectors() -> list[Any]:
    cases = []
    for name in PROFILES:
        for file in ("messages", "high-clock"):
            for row in vector(f"{name}-{file}")["messages"]:
                label = f"{name}-{row.get('name', row['clock'])}-{row.get('codec', row.get('type', ''))}"
                cases.append(pytest.param(name, row, id=label))
    return cases


@BOTH
def test_clocks_are_written_as_the_originals_write_them(profile):
    for row in vector(f"{profile.name}-clock")["rows"]:
        raw = bytes.fromhex(row["encoded"])
        assert profile.code.encode(row["clock"]) == raw
        assert profile.code.split((raw + bytes(20))[:20]) == (row["clock"], len(raw))


@BOTH
def test_keys_sort_by_clock_at_every_clock(profile):
    clocks = [1, 127, 128, 255, 256, 16383, 16384, 16385, 65536, 2097151, 2097152, 2**31 - 1]
    keys = [(profile.code.encode(clock) + bytes(20))[:20] for clock in clocks]
    shuffled = keys[6:] + keys[:6]
    assert sorted(shuffled, key=profile.code.order) == keys
    assert [profile.code.from_order(profile.code.order(key)) for key in keys] == keys


@BOTH
def test_a_clock_beyond_the_profile_is_refused(profile):
    for clock in (-1, profile.code.clock_max + 1):
        with pytest.raises(RangeExceeded):
            profile.code.encode(clock)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("v0.6", "8000"),
        ("v0.6", "88ffffff7f"),
        ("v0.6", "8181818181"),
        ("v0.13", "807f"),
        ("v0.13", "ff"),
        ("v0.13", "c00000"),
    ],
)
def test_a_clock_in_a_second_spelling_is_refused(name, start):
    with pytest.raises(Invalid, match="clock"):
        CLOCKS[name].split((bytes.fromhex(start) + bytes(20))[:20])


@pytest.mark.parametrize(
    "text", ["", "0" * 31, "0" * 33, "w" * 32, "A" * 32, "0" * 31 + "\n", " " + "0" * 31, "_" * 32]
)
def test_what_is_no_id_is_refused(text):
    with pytest.raises(Invalid):
        key_of(text)


def test_a_key_of_another_length_has_no_id():
    with pytest.raises(Invalid):
        id_of(bytes(19))


@fold(("name", "row"), signed_vectors())
def test_messages_match_the_originals_byte_for_byte(name, row):
    profile = PROFILES[name]
    raw = bytes.fromhex(row["signed_message_cbor"])
    found = decode(profile, row["topic"], raw)
    verify(profile, found)
    assert (found.id, found.key.hex(), found.message.clock) == (row["id"], row["key"], row["clock"])
    assert found.message.parents == tuple(row["parents"])
    assert found.signature.public_key == row["public_key"]
    assert found.signature.signature.hex() == row["signature"]
    if "cid" in row:
        assert cid_of(found).text() == row["cid"]
    signer = SigningKey(row.get("type", "ed25519"), bytes.fromhex(row["private_key"]))
    payload = (
        cbor.dag_decode(bytes.fromhex(row["payload_cbor"]))
        if "payload_cbor" in row
        else row["payload_dagjson"]
    )
    codec = row.get("codec", "dag-cbor")
    made = sign(profile, signer, row["topic"], tuple(map(key_of, row["parents"])), payload, codec)
    assert made.raw == raw
    assert assemble(profile, found.signature, found.message).raw == raw


@pytest.mark.parametrize(
    "row", vector("v0.13-messages")["messages"], ids=lambda row: f"{row['name']}-{row['codec']}"
)
def test_what_v013_signs_is_what_the_original_signs(row):
    found = decode(V13, row["topic"], bytes.fromhex(row["signed_message_cbor"]))
    signed = bytes.fromhex(row["signed_bytes"])
    if row["codec"] == "dag-json":
        message = found.message
        value = {
            "topic": message.topic, "clock": message.clock, "parents": list(message.parents), "payload": message.payload
        }  # fmt: skip
        assert dag_json.encode(value) == signed
    else:
        assert signed.endswith(bytes.fromhex(row["payload_cbor"]))


def test_every_non_canonical_payload_of_the_vectors_is_refused():
    made = sign(V13, KEY, TOPIC, (), None)
    for case in vector("dag-cbor-decode")["cases"]:
        raw = made.raw[: made.payload_at] + bytes.fromhex(case["input"])
        if case["accepted"] and case["canonical"]:
            assert decode(V13, TOPIC, raw).payload_at == made.payload_at
        else:
            with pytest.raises(InvalidCbor):
                decode(V13, TOPIC, raw)


@BOTH
def test_unsorted_and_doubled_parents_are_refused(profile):
    parents = tuple(Key(bytes((1, n)) + bytes(18)) for n in range(2))
    made = sign(profile, KEY, TOPIC, parents, None)
    assert made.parent_keys == parents
    one, two = (b"\x54" + parent for parent in parents)
    for wrong in (two + one, one + one):
        with pytest.raises(BrokenLink, match="ascending"):
            decode(profile, TOPIC, made.raw.replace(one + two, wrong))
    with pytest.raises(BrokenLink):
        reordered = GossipMessage(TOPIC, 2, tuple(reversed(made.message.parents)), None)
        assemble(profile, made.signature, reordered)


@BOTH
def test_a_wrong_clock_is_refused(profile):
    made = sign(profile, KEY, TOPIC, (), None)
    with pytest.raises(BrokenLink, match="got 7"):
        assemble(profile, made.signature, GossipMessage(TOPIC, 7, (), None))


def test_a_foreign_topic_is_refused():
    made = sign(V13, KEY, TOPIC, (), None)
    with pytest.raises(Invalid, match=r"belongs to topic 'com\.example'"):
        decode(V13, "com.other", made.raw)
    other = sign(V06, KEY, TOPIC, (), None)  # v0.6 does not write the topic, but signs it
    with pytest.raises(SigInvalid):
        verify(V06, decode(V06, "com.other", other.raw))


@BOTH
def test_a_truncated_signature_is_refused(profile):
    made = sign(profile, KEY, TOPIC, (), None)
    short = made.raw.replace(
        b"\x58\x40" + made.signature.signature, b"\x58\x3f" + made.signature.signature[:-1]
    )
    with pytest.raises(Invalid, match="64 bytes"):
        decode(profile, TOPIC, short)


@BOTH
def test_one_flipped_bit_anywhere_is_noticed(profile):
    made = sign(profile, KEY, TOPIC, (Key(b"\x01" + bytes(19)),), {"text": "rope"})
    for at in range(len(made.raw)):
        changed = bytearray(made.raw)
        changed[at] ^= 0x01
        with pytest.raises(RopewalkError):
            verify(profile, decode(profile, TOPIC, bytes(changed)))


def test_a_key_type_the_profile_does_not_know_is_refused():
    p256 = SigningKey.generate("p256", bytes(range(32)))
    secp = SigningKey.generate("secp256k1", bytes(range(32)))
    for profile, key in ((V13, p256), (V13, secp), (V06, p256)):
        with pytest.raises(InvalidKey):
            sign(profile, key, TOPIC, (), None)
    made = sign(V06, secp, TOPIC, (), None)
    parts = GossipSignature(made.signature.public_key, made.signature.signature)
    with pytest.raises(InvalidKey):
        verify(V13, assemble(V13, parts, made.message))


def test_v06_signs_nothing_but_dag_cbor():
    with pytest.raises(Invalid, match="dag-json"):
        sign(V06, KEY, TOPIC, (), None, "dag-json")


@BOTH
def test_nothing_is_not_a_message(profile):
    for raw in (b"", b"\x80", b"\xf6", b"\x84", sha256(b"")):
        with pytest.raises(Invalid):
            decode(profile, TOPIC, raw)


@BOTH
def test_a_message_without_payload_bytes_is_refused(profile):
    made = sign(profile, KEY, TOPIC, (), None)
    with pytest.raises(InvalidCbor):
        decode(profile, TOPIC, made.raw[:-1])


@BOTH
def test_an_over_long_payload_is_refused(profile):
    with pytest.raises(TooLarge):
        sign(profile, KEY, TOPIC, (), bytes(MESSAGE_BYTES_MAX))
    with pytest.raises(TooLarge):
        decode(profile, TOPIC, bytes(MESSAGE_BYTES_MAX + 1))


@BOTH
def test_too_many_parents_are_refused(profile):
    parents = tuple(Key(b"\x01" + n.to_bytes(19, "big")) for n in range(PARENTS_MAX + 1))
    assert len(sign(profile, KEY, TOPIC, parents[1:], None).parent_keys) == PARENTS_MAX
    with pytest.raises(TooLarge):
        sign(profile, KEY, TOPIC, parents, None)


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "ä", "a\n", "a:b", "x" * 201])
def test_topics_outside_the_pattern_are_refused(topic):
    for profile in PROFILES.values():
        with pytest.raises(Invalid):
            check_topic(profile, topic)


def test_only_v013_allows_a_fragment():
    assert check_topic(V13, "a.b-C#d") == "a.b-C#d"
    with pytest.raises(Invalid):
        check_topic(V06, "a#b")


@BOTH
def test_values_that_cannot_travel_are_refused(profile):
    for payload in (float("nan"), float("inf"), 2**64, "\ud800", {1: 2}, {"x": object()}):
        with pytest.raises(RopewalkError):
            sign(profile, KEY, TOPIC, (), payload)


def test_dag_json_reads_what_it_writes():
    value = {"b": b"\x00\xff", "t": 'é\n\u0001"\\', "n": [1, -2.5, 1e300, None, True], "m": {"": 0}}
    assert dag_json.parse(dag_json.encode(value)) == value


@pytest.mark.parametrize(
    "raw",
    [
        b'{"/":1}',
        b'{"/":"x","a":1}',
        b'{"/":{"bytes":"a="}}',
        b'{"/":{"bytes":"a"}}',
        b'{"/":{"bytes":"","x":1}}',
        b'{"/":"nocid"}',
    ],
)
def test_a_reserved_key_that_is_neither_bytes_nor_link_is_refused(raw):
    with pytest.raises(Invalid):
        dag_json.parse(raw)


@pytest.mark.parametrize("codec", ["dag-cbor", "dag-json"])
@pytest.mark.parametrize("payload", [{"/": 1}, [{"a": {"/": {"bytes": "AAAA"}}}], {"/": "nocid", "b": 2}])
def test_append_refuses_maps_javascript_reorders(payload, codec):
    log = memory_log()
    with pytest.raises(Invalid, match="reserved"):
        log.append(payload, codec=codec)
    assert log.append(["/", {"a/": "/"}], codec=codec).message.payload == ["/", {"a/": "/"}]
    # v0.6 keeps the bytes themselves, and so does a v0.13 peer of ours that is sent such a message.
    assert memory_log(profile="v0.6").append(payload).message.payload == payload


@pytest.mark.parametrize("profile", PROFILES)
def test_an_unknown_codec_is_refused_before_anything_is_stored(profile):
    log = memory_log(profile=profile)
    with pytest.raises(Invalid, match="raw"):
        log.append(1, codec="raw")  # type: ignore[arg-type]
    assert len(log) == 0


@pytest.mark.parametrize("clock", [-1, 0, 2**70])
def test_a_clock_no_message_can_have_is_refused(clock):
    log = memory_log()
    signature = GossipSignature(KEY.public.did(), bytes(64))
    with pytest.raises(Invalid):
        log.insert_signed(signature, GossipMessage(log.topic, clock, (), None))


def test_an_error_quotes_a_strangers_text_in_short():
    long = "x" * 100_000
    for raw in (
        [[long, "did:key:z", bytes(64)], "com.example", 1, [], 0],
        [["dag-cbor", "did:key:z", bytes(64)], long, 1, [], 0],
        [["dag-cbor", "did:key:z", bytes(64)], "com.example", long, [], 0],
    ):
        with pytest.raises(Invalid) as caught:
            decode(V13, "com.example", cbor.dag_encode(raw))
        assert len(str(caught.value)) < 300


# The quick reader of usual v0.13 messages against the reader of all of them.


def _spelled(clock: int, parents: tuple[Key, ...], payload_raw: bytes, author: str | None = None) -> bytes:
    parts = Parts(
        "dag-cbor", author or KEY.public.did(), bytes(range(64)), "com.example", clock, parents, None
    )
    return profiles._pack_v13(parts, payload_raw)


def _agree(raw: bytes) -> bool:
    """Return whether the quick reader took it; it must then say what the other one says."""
    found = profiles._unpack_usual_v13(raw, "com.example")
    if found is not None:
        assert found == profiles._unpack_any_v13(raw, "com.example")
    return found is not None


@pytest.mark.parametrize("clock", [1, 23, 24, 255, 256, 0xFFFF, 0x10000, 2**40])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_quick_reader_takes_usual_messages_only(clock, count):
    parents = tuple(Key(bytes([n]) * 20) for n in range(count))
    assert _agree(_spelled(clock, parents, b"\xa1\x61a\x01")) is (clock <= 0xFFFF and count < 2)


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("levels", [0, 1, 2, 126, 127, 128])
def test_quick_reader_counts_the_levels_of_the_whole_message(levels, long):
    filler = b"\x78\xff" + b"x" * 255 if long else b"\x01"
    raw = _spelled(1, (), b"\x81" * levels + filler)
    try:
        profiles._unpack_any_v13(raw, "com.example")
    except Invalid:
        assert not _agree(raw) and levels >= 127
    else:
        assert _agree(raw) is (levels < 128)


def test_quick_reader_refuses_what_the_other_reader_refuses():
    """Every byte changed in several ways, cut off and followed by more."""
    raw = _spelled(300, (Key(b"\x81\x2b" + bytes(18)),), cbor.dag_encode({"a": [1.5, None], "b": b"\xfb"}))
    assert _agree(raw)
    taken = 0
    for at in range(len(raw)):
        for byte in (0, 1, 0x17, 0x18, 0x40, 0x60, 0x80, 0xFF, raw[at] ^ 1, raw[at] ^ 0x20):
            taken += _agree(raw[:at] + bytes([byte]) + raw[at + 1 :])
        assert not _agree(raw[:at])
    assert not _agree(raw + b"\0")
    assert taken  # other signatures, parents and payloads
    assert not _agree(_spelled(1, (), b"\x18\x01"))  # a payload in a second spelling
    assert not _agree(_spelled(1, (), b"\x01", "did:key:z" + "é" * 23 + "x"))
