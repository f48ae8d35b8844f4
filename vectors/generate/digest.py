"""Cases for names: content ids, tagged digests, CIDs and the spellings they are made of."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from blake3 import blake3

Case = dict[str, Any]

# Written out once more, so that a tag changed by accident shows here.
TAGS = {
    "ENVELOPE": "ea:envelope:v1",
    "NODE": "ea:node:v1",
    "EMPTY": "ea:empty:v1",
    "BLOCK": "ea:block:v1",
    "BLOCK_SIGNATURE": "ea:block-signature:v1",
    "SIGNATURE": "ea:signature:v1",
    "IDENTITY": "ea:identity:v1",
    "RANGE_NODE": "ea:range-node:v1",
    "POLICY": "ea:policy:v1",
    "CAPABILITY": "ea:capability:v1",
    "CHECKPOINT": "ea:checkpoint:v1",
    "BUNDLE": "ea:bundle:v1",
    "ARCHIVE": "ea:archive:v1",
    "MAILBOX": "ea:mailbox:v1",
    "MAILBOX_SLOT": "ea:mailbox-slot:v1",
    "ENCLAVE": "ea:enclave:v1",
    "ENCLAVE_KEY": "ea:enclave-key:v1",
    "REPORT_DATA": "ea:report-data:v1",
    "STATE": "ea:state:v1",
    "STATE_MAP": "ea:state-map:v1",
    "STATE_LEAF": "ea:state-leaf:v1",
    "STATE_NODE": "ea:state-node:v1",
    "STATE_VALUE": "ea:state-value:v1",
    "KEY_ACCEPTANCE": "ea:key-acceptance:v1",
    "APPROVAL": "ea:approval:v1",
    "POINTER_NONCE": "gatos:ptr:nonce:v1",
    "POINTER_PRIVATE": "gatos:ptr:priv:",
    "IMPORT": "shiplog-import:v1:",
    "KEY_ID": "ropewalk:key-id:v1",
}


def case(name: str, why: str, given: object, expect: object) -> Case:
    return {"name": name, "why": why, "input": given, "expect": expect}


def refuse(name: str, why: str, given: object) -> Case:
    return {"name": name, "why": why, "input": given, "error": "InvalidDigest"}


def content_id() -> Case:
    long = bytes(i % 251 for i in range(5000))  # the input pattern of BLAKE3's own vectors
    raws = {
        "empty": b"",
        "abc": b"abc",
        "empty_object": b"{}",
        "not_ascii": '{"a":"é"}'.encode(),
        "many_chunks": long,
    }
    return {
        "name": "content_id",
        "why": "blake3: and 64 lower-case hex digits, over exactly the bytes that are stored. Input hex.",
        "cases": [
            case(name, f"{len(raw)} bytes", raw.hex(), f"blake3:{blake3(raw).hexdigest()}")
            for name, raw in raws.items()
        ],
    }


def content_id_text() -> Case:
    good = blake3(b"").hexdigest()
    return {
        "name": "content_id_text",
        "why": "A content id has one spelling; a second one would be a second name. Input text, expect hex.",
        "cases": [
            case("lower", "as written", f"blake3:{good}", good),
            refuse("upper_digits", "hex is lower case", f"blake3:{good.upper()}"),
            refuse("upper_prefix", "the algorithm is lower case", f"BLAKE3:{good}"),
            refuse("no_prefix", "the algorithm is part of the name", good),
            refuse("sha256_prefix", "another algorithm", f"sha256:{good}"),
            refuse("short", "63 digits", f"blake3:{good[:-1]}"),
            refuse("long", "65 digits", f"blake3:{good}0"),
            refuse("newline", "a line is not a name", f"blake3:{good}\n"),
            refuse("leading_space", "no white space", f" blake3:{good}"),
            refuse("not_hex", "g is no digit", f"blake3:{'g' * 64}"),
            refuse("other_digits", "digits of another script", f"blake3:{'٣' * 64}"),
            refuse("empty", "nothing", ""),
        ],
    }


def tags() -> Case:
    return {
        "name": "tags",
        "why": "Every domain tag, and BLAKE3 of the tag followed by the three bytes 00 01 02.",
        "cases": [
            {"name": name, "input": tag, "expect": blake3(tag.encode() + b"\0\1\2").hexdigest()}
            for name, tag in TAGS.items()
        ],
    }


def base32(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()


def cid() -> Case:
    texts = {"empty": b"", "rope": b"rope", "empty_map": b"\xa0"}
    codecs = {"raw": (0x55, b"\x55"), "dag_cbor": (0x71, b"\x71"), "dag_json": (0x0129, b"\xa9\x02")}
    cases = []
    for codec_name, (codec, spelled) in codecs.items():
        for name, raw in texts.items():
            binary = b"\x01" + spelled + b"\x12\x20" + hashlib.sha256(raw).digest()
            cases.append(
                case(
                    f"{codec_name}_{name}",
                    "CIDv1, sha2-256",
                    {"codec": codec, "bytes": raw.hex()},
                    {"cid": binary.hex(), "text": "b" + base32(binary)},
                )
            )
    return {
        "name": "cid",
        "why": "CIDv1 with sha2-256: binary (hex) and text (base32 after b).",
        "cases": cases,
    }


def cid_text() -> Case:
    digest = hashlib.sha256(b"rope").digest()
    good = b"\x01\x71\x12\x20" + digest
    text = "b" + base32(good)
    v0 = b"\x12\x20" + digest

    def binary(name: str, why: str, raw: bytes) -> Case:
        return refuse(name, why, "b" + base32(raw))

    return {
        "name": "cid_text",
        "why": "A CID text is read only if it would be written the same way. Input text, expect the binary CID in hex.",
        "cases": [
            case("v1", "base32 after b", text, good.hex()),
            case("v0", "34 bytes of sha2-256 in bare base58", base58(v0), v0.hex()),
            case(
                "v1_blake3",
                "another hash is another name, not an error",
                "b" + base32(b"\x01\x71\x1e\x20" + digest),
                (b"\x01\x71\x1e\x20" + digest).hex(),
            ),
            case(
                "v1_cut_sha256",
                "20 bytes announced, 20 bytes there: a weak name, but one",
                "b" + base32(b"\x01\x71\x12\x14" + digest[:20]),
                (b"\x01\x71\x12\x14" + digest[:20]).hex(),
            ),
            case(
                "v1_identity",
                "content in place of a hash",
                "b" + base32(b"\x01\x55\x00\x04rope"),
                b"\x01\x55\x00\x04rope".hex(),
            ),
            refuse("upper", "base32 is lower case here", "B" + base32(good).upper()),
            refuse("upper_body", "base32 is lower case here", "b" + base32(good).upper()),
            refuse("padded", "no padding", text + "===="),
            refuse("base58_v1", "version 1 is base32 here", "z" + base58(good)),
            refuse("base16", "version 1 is base32 here", "f" + good.hex()),
            refuse("stray_bits", "bits after the last byte are zero", text[:-1] + chr(ord(text[-1]) + 1)),
            refuse("alphabet", "1 is not in base32", text[:-1] + "1"),
            refuse("empty", "nothing", ""),
            refuse("only_prefix", "nothing after b", "b"),
            refuse("newline", "a line is not a name", text + "\n"),
            binary("v0_in_base32", "version 0 has no multibase", v0),
            binary("version_2", "no such version", b"\x02" + good[1:]),
            binary("version_0_spelt_out", "version 0 is not written as a number", b"\x00" + good[1:]),
            binary("version_long_varint", "1 in two bytes", b"\x81\x00" + good[1:]),
            binary("codec_long_varint", "0x71 in two bytes", b"\x01\xf1\x00" + good[2:]),
            binary("length_long_varint", "32 in two bytes", b"\x01\x71\x12\xa0\x00" + digest),
            binary("endless_varint", "no end within nine bytes", b"\x01" + b"\xff" * 10 + good[2:]),
            binary("short_digest", "31 bytes where 32 are announced", good[:-1]),
            binary("long_digest", "33 bytes where 32 are announced", good + b"\0"),
            binary("no_digest", "ends after the hash code", b"\x01\x71\x12"),
            refuse("v0_wrong_hash", "version 0 is always sha2-256", base58(b"\x13\x20" + digest)),
            refuse("v0_alphabet", "0 is not in base58", "Qm0" + base58(v0)[3:]),
        ],
    }


def base58(raw: bytes) -> str:
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    number, text = int.from_bytes(raw, "big"), ""
    while number:
        number, rest = divmod(number, 58)
        text = alphabet[rest] + text
    return "1" * (len(raw) - len(raw.lstrip(b"\0"))) + text


def spellings() -> Case:
    cases: list[Case] = []
    for name, raw in {
        "empty": b"",
        "zero": b"\0",
        "zeros": b"\0\0\1",
        "text": b"Hello World!",
        "all_ones": b"\xff" * 32,
        "counting": bytes(range(20)),
    }.items():
        cases += [
            case(
                f"base58_{name}",
                "leading zero bytes are ones",
                {"form": "base58", "bytes": raw.hex()},
                base58(raw),
            ),
            case(f"base32_{name}", "no padding", {"form": "base32", "bytes": raw.hex()}, base32(raw)),
            case(
                f"base64_{name}",
                "padded",
                {"form": "base64", "bytes": raw.hex()},
                base64.b64encode(raw).decode(),
            ),
        ]
    for number, spelled in {
        0: "00",
        1: "01",
        127: "7f",
        128: "8001",
        0x1200: "8024",
        2**63 - 1: "f" * 16 + "7f",
    }.items():
        cases.append(
            case(f"varint_{number}", "seven bits a byte", {"form": "varint", "number": str(number)}, spelled)
        )
    return {
        "name": "spellings",
        "why": "base58btc, base32, base64 and unsigned varints, both ways. Numbers are decimal texts, varints hex.",
        "cases": cases,
    }


def generate() -> dict[str, object]:
    return {
        "digest/cid.json": cid(),
        "digest/cid_text.json": cid_text(),
        "digest/content_id.json": content_id(),
        "digest/content_id_text.json": content_id_text(),
        "digest/spellings.json": spellings(),
        "digest/tags.json": tags(),
    }
