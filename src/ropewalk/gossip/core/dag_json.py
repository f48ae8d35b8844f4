"""DAG-JSON: the IPLD data model as JSON text, byte for byte as the JavaScript codec writes it.

Bytes are `{"/": {"bytes": "…"}}` and links are `{"/": "…"}`; no other map may have the key `/`. Keys sort by UTF-16
code units, because the codec compares JavaScript strings; for text outside the Basic Multilingual Plane that is not
the order of the UTF-8 bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Any

from ropewalk.errors import InvalidJson
from ropewalk.kernel import jcs
from ropewalk.kernel.cbor import Link
from ropewalk.kernel.digest import cid_text, parse_cid

DEPTH_MAX = 128  # as for every JSON text of the house
SAFE = 2**53 - 1
_escape = json.encoder.encode_basestring


def encode(value: Any) -> bytes:
    """Return the DAG-JSON bytes of a value of the IPLD data model.

    >>> encode({"b": b"rope", "a": 1.0, "big": 2.0**53})
    b'{"a":1,"b":{"/":{"bytes":"cm9wZQ"}},"big":9007199254740992.0}'
    """
    out: list[str] = []
    _write(value, out, 0)
    try:
        return "".join(out).encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidJson("a lone surrogate has no UTF-8", reason="lone surrogate") from error


def _write(value: Any, out: list[str], depth: int) -> None:
    if depth > DEPTH_MAX:
        raise InvalidJson(f"nested deeper than {DEPTH_MAX}", reason="depth")
    match value:
        case None:
            out.append("null")
        case bool():
            out.append("true" if value else "false")
        case str():
            out.append(_escape(value))
        case int():
            out.append(str(value))
        case float():
            out.append(_number(value))
        case Link() | bytes():
            out.append(json.dumps(to_json(value), separators=(",", ":")))
        case list() | tuple():
            out.append("[")
            for index, item in enumerate(value):
                out.append("," if index else "")
                _write(item, out, depth + 1)
            out.append("]")
        case dict():
            _refuse_reserved(value)
            out.append("{")
            for index, key in enumerate(sorted(value, key=_utf16)):
                out.append(("," if index else "") + _escape(key) + ":")
                _write(value[key], out, depth + 1)
            out.append("}")
        case _:
            raise InvalidJson(f"{type(value).__name__} has no DAG-JSON form", reason="type")


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise InvalidJson(f"{value} has no DAG-JSON form", reason="not finite")
    if value.is_integer() and abs(value) <= SAFE:
        return str(int(value))  # JavaScript knows no other 1.0; and -0.0 is written 0
    text = jcs.encode_foreign(value).decode("ascii")
    return text if "." in text or "e" in text else text + ".0"


def _utf16(key: Any) -> bytes:
    if not isinstance(key, str):
        raise InvalidJson(f"map key {key!r} is not text", reason="key type")
    try:
        return key.encode("utf-16-be")
    except UnicodeEncodeError as error:
        raise InvalidJson("a lone surrogate has no UTF-8", reason="lone surrogate") from error


def _refuse_reserved(value: dict[str, Any]) -> None:
    if "/" in value:
        raise InvalidJson(
            'the map key "/" is reserved for bytes and links',
            reason="reserved key",
            advice='Rename the key; as DAG-JSON, write bytes as {"/": {"bytes": BASE64}} and a link as {"/": CID}.',
        )


def to_json(value: Any) -> Any:
    """Return a value of the IPLD data model as plain JSON values, for `--json` answers and pages.

    >>> to_json([b"rope", {"n": 1}])
    [{'/': {'bytes': 'cm9wZQ'}}, {'n': 1}]
    """
    if isinstance(value, bytes):
        return {"/": {"bytes": base64.b64encode(value).decode("ascii").rstrip("=")}}
    if isinstance(value, Link):
        return {"/": cid_text(value.cid)}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def from_json(value: Any) -> Any:
    """Return plain JSON values with their DAG-JSON maps turned into bytes and links.

    >>> from_json({"x": {"/": {"bytes": "cm9wZQ"}}})
    {'x': b'rope'}
    """
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"/": str(text)} if len(value) == 1:
            return Link(parse_cid(text))
        case {"/": {"bytes": str(text), **rest}} if len(value) == 1 and not rest:
            return _base64(text)
    _refuse_reserved(value)
    return {key: from_json(item) for key, item in value.items()}


def parse(raw: bytes) -> Any:
    """Return the value of a DAG-JSON text, read as strictly as all JSON here.

    >>> parse(b'{"/": {"bytes": "cm9wZQ"}}')
    b'rope'
    """
    return from_json(jcs.parse(raw))


def _base64(text: str) -> bytes:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidJson(f"{text[:40]!r} is not base64 without padding", reason="base64") from error
    if base64.b64encode(raw).decode("ascii").rstrip("=") != text:
        raise InvalidJson(f"{text[:40]!r} is not base64 without padding", reason="base64")
    return raw
