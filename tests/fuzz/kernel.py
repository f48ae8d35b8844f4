"""Parsers of the kernel: JSON, CBOR, names, keys, notes, schemas."""

from __future__ import annotations

from functools import cache

from ropewalk.kernel import cbor, digest, jcs, keys, ulid
from ropewalk.kernel.note import key, note
from ropewalk.kernel.schema import shipped as schema
from tests.fuzz.offering import Parser, as_text
from tests.unit.ledger.making import NODE, command

__all__ = ["PARSERS"]


def _jcs(raw: bytes) -> None:
    value = jcs.parse(raw)
    canonical = jcs.encode(value)
    assert jcs.canonicalise(raw) == canonical
    assert jcs.encode(jcs.parse_canonical(canonical)) == canonical


def _jcs_canonical(raw: bytes) -> None:
    assert jcs.encode(jcs.parse_canonical(raw)) == raw


def _jcs_foreign(raw: bytes) -> None:
    canonical = jcs.encode_foreign(jcs.parse_foreign(raw))
    assert jcs.encode_foreign(jcs.parse_foreign(canonical)) == canonical


def _cbor(raw: bytes) -> None:
    assert cbor.encode(cbor.decode(raw)) == raw


def _dag_cbor(raw: bytes) -> None:
    assert cbor.dag_encode(cbor.dag_decode(raw)) == raw


def _schema(raw: bytes) -> None:
    names = schema.names()
    schema.validate(names[raw[0] % len(names)] if raw else names[0], jcs.parse(raw[1:]))


def _content_id(raw: bytes) -> None:
    assert f"blake3:{digest.parse_content_id(as_text(raw)).hex()}" == as_text(raw)


def _cid(raw: bytes) -> None:
    assert digest.cid_text(digest.parse_cid(as_text(raw))) == as_text(raw)


def _cid_bytes(raw: bytes) -> None:
    digest.split_cid(raw)
    assert digest.parse_cid(digest.cid_text(raw)) == raw


def _ulid(raw: bytes) -> None:
    found = ulid.parse(as_text(raw))
    assert ulid.from_bytes(ulid.to_bytes(found)) == found == as_text(raw)
    assert ulid.make(ulid.time_ms(found), ulid.randomness(found)) == found


def _did(raw: bytes) -> None:
    assert keys.PublicKey.from_did(as_text(raw)).did() == as_text(raw)


def _multicodec(raw: bytes) -> None:
    assert keys.PublicKey.from_multicodec(raw).to_multicodec() == raw


def _identity(raw: bytes) -> None:
    value = jcs.parse(raw)
    assert keys.PublicKey.from_json(value).to_json() == value


def _signature(raw: bytes) -> None:
    value = jcs.parse(raw)
    assert keys.Signature.from_json(value).to_json() == value


def _vkey(raw: bytes) -> None:
    assert key.Verifier.from_text(as_text(raw)).to_text() == as_text(raw)


def _note(raw: bytes) -> None:
    found = note.open_note(raw, [_signer().verifier])
    assert raw.startswith(found.text.encode())


def _signed_head(raw: bytes) -> None:
    found = note.SignedHead.from_text(as_text(raw))
    assert note.SignedHead.from_text(found.to_text()) == found


@cache
def _signer() -> key.Signer:
    return key.Signer("log.example/fuzz", NODE)


def _signing_keys() -> tuple[keys.SigningKey, ...]:
    return tuple(keys.SigningKey.generate(alg, b"k" * 32) for alg in ("ed25519", "p256", "secp256k1"))


def _catalogue() -> tuple[Parser, ...]:
    jsons = (b'{"a":[1,2.5,"\\u00e9",null,true],"b":{}}', b"[1e21,-0.0,1.0]", b'"x"')
    one = command("c")
    signed = note.sign_head(note.SignedHead("log.example/fuzz", 3, bytes(32)), _signer())
    listed = [
        ("jcs", _jcs, jsons),
        ("jcs_canonical", _jcs_canonical, jsons),
        ("jcs_foreign", _jcs_foreign, (*jsons, b"[123456789012345678901234567890]")),
        ("cbor", _cbor, (cbor.encode({"a": [1, 2.5, b"x", None]}),)),
        ("dag_cbor", _dag_cbor, (cbor.dag_encode({"a": [1, b"x", cbor.Link(digest.cid(0x71, b""))]}),)),
        ("schema", _schema, tuple(bytes((at,)) + one.raw for at in range(len(schema.names())))),
        ("content_id", _content_id, (digest.content_id(b"").encode(),)),
        ("cid", _cid, (digest.cid_text(digest.cid(0x71, b"")).encode(),)),
        ("cid_bytes", _cid_bytes, (digest.cid(0x71, b""),)),
        ("ulid", _ulid, (b"01ARZ3NDEKTSV4RRFFQ69G5FAV",)),
        ("did_key", _did, tuple(k.public.did().encode() for k in _signing_keys())),
        ("multicodec_key", _multicodec, tuple(k.public.to_multicodec() for k in _signing_keys())),
        ("identity", _identity, (jcs.encode(NODE.public.to_json()),)),
        ("signature", _signature, (jcs.encode(keys.Signature("ed25519", bytes(64)).to_json()),)),
        ("note_key", _vkey, (_signer().verifier.to_text().encode(),)),
        ("note", _note, (signed,)),
        ("signed_head", _signed_head, (signed.split(b"\n\n")[0] + b"\n",)),
    ]
    return tuple(Parser(name, take, samples) for name, take, samples in listed)


PARSERS = _catalogue()
