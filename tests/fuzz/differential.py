"""Parsers beside independent implementations: what ours accepts, the other one must read as the same value."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile

import asn1crypto.parser
import cbor2
import dag_cbor
import rfc8785
from ulid import ULID

from ropewalk.kernel import cbor, digest, jcs, ulid
from ropewalk.ledger.bundle import tar
from ropewalk.ledger.evidence.tee import der
from tests.fuzz.offering import Parser, as_text

__all__ = ["PARSERS"]


def _jcs(raw: bytes) -> None:
    ours = jcs.parse(raw)
    theirs = json.loads(raw)
    assert ours == theirs
    assert jcs.encode(ours) == rfc8785.dumps(theirs)


def _cbor(raw: bytes) -> None:
    ours = cbor.decode(raw)
    assert ours == cbor2.loads(raw)


def _dag_cbor(raw: bytes) -> None:
    cbor.dag_decode(raw)
    with contextlib.suppress(KeyError):  # a link by a code that the other library's table lacks
        assert dag_cbor.encode(dag_cbor.decode(raw)) == raw


def _ulid(raw: bytes) -> None:
    ours = ulid.parse(as_text(raw))
    theirs = ULID.from_str(ours)
    assert theirs.bytes == ulid.to_bytes(ours)
    assert theirs.milliseconds == ulid.time_ms(ours)


def _der(raw: bytes) -> None:
    for tag, content in der.parse_elements(raw):
        class_, constructed, number, header, theirs, trailer = asn1crypto.parser.parse(raw)
        assert (class_ << 6 | constructed << 5 | number, theirs, trailer) == (tag, content, b"")
        raw = raw[len(header) + len(theirs) :]
    assert not raw


def _tar(raw: bytes) -> None:
    reader, ours = tar.TarReader(), dict[str, bytes]()
    name = ""
    for each in reader.feed(raw):
        if isinstance(each, tar.Member):
            name = each.name
            ours[name] = b""
        else:
            ours[name] += each
    reader.finish()
    theirs: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
        for member in archive:
            found = archive.extractfile(member)
            assert member.isreg() and found is not None
            theirs[member.name] = theirs.get(member.name, b"") + found.read()
    assert theirs == ours


def _files(*contents: bytes) -> bytes:
    parts = (
        tar.member_header(f"blocks/{number}.jsonl", len(each)) + each + tar.padding(len(each))
        for number, each in enumerate(contents)
    )
    return b"".join(parts) + tar.END


_JSONS = (
    b'{"a":[1,2.5,"\\u00e9\\ud83d\\ude00",null,true],"b":{"":-0.0}}',
    b"[1e21,1E-7,-0.0,1.0,9007199254740991,5e-324,1.7976931348623157e308]",
    b'"\\u2028\\b\\/"',
)
_NESTED = bytes.fromhex("30090201050c0174300100")

PARSERS = (
    Parser("differential_jcs", _jcs, _JSONS),
    Parser("differential_cbor", _cbor, (cbor.encode({"a": [1, -2, 2.5, b"x", None, True, "é"], "b": {}}),)),
    Parser(
        "differential_dag_cbor",
        _dag_cbor,
        (cbor.dag_encode({"a": [1, b"x", 2.5, cbor.Link(digest.cid(0x71, b""))]}),),
    ),
    Parser("differential_ulid", _ulid, (b"01ARZ3NDEKTSV4RRFFQ69G5FAV", b"7ZZZZZZZZZZZZZZZZZZZZZZZZZ")),
    Parser("differential_der", _der, (_NESTED, bytes.fromhex("020105160141"), b"\x04\x81\x80" + bytes(128))),
    Parser("differential_tar", _tar, (_files(b"hi", b"", b"x" * 600), _files())),
)
