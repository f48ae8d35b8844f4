"""The shipped JSON Schemas, applied: a violation is reported with its place and the schema's id.

A schema's name is its path below `ropewalk/schemas/v1`: `shiplog/event_envelope`, `ledger/envelope`. Its `$id` is the
one of the specification, and it is only a name: references between schemas are answered from this package, and nothing
is ever fetched. Formats are asserted.

The texts are read through `importlib.resources`. They are part of the program, like the module itself, so this is the
one place of the kernel that may.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NoReturn

import orjson

from ropewalk.errors import InvalidEnvelope, NotFound
from ropewalk.kernel.json_check import shown
from ropewalk.kernel.schema.faults import MASK, find_fault

if TYPE_CHECKING:  # a heavy import: the first validation pays for it, not the first import of the kernel
    from jsonschema_rs import Registry, ValidationError, Validator

_SUFFIX: Final = ".schema.json"


def validate(name: str, value: object) -> None:
    """Return if the value fits the schema, else raise with the first thing that does not.

    >>> event = {"ulid": "01HF4Y9Q1SM8Q7K9DK2R3V4AWB", "ns": "demo", "type": "made", "payload": {}}
    >>> validate("shiplog/event_envelope", event)
    >>> validate("shiplog/event_envelope", {**event, "payload": 5})
    Traceback (most recent call last):
    ropewalk.errors.InvalidEnvelope: /payload: 5 is not of type "object" (shiplog/event_envelope)
    """
    validator = _validator(name)
    try:
        if validator.is_valid(value):  # almost always; nothing else is worth a call
            return
        fault = find_fault(validator, value, _title)
    except ValueError as error:  # not JSON at all: a set, bytes, a key that is no string
        raise InvalidEnvelope(f"{error} ({name})", where="", schema=schema_id(name)) from None
    assert fault is not None
    raise InvalidEnvelope(f"{fault} ({name})", where=fault.where, schema=schema_id(name))


@cache
def names() -> tuple[str, ...]:
    """Return the names of all shipped schemas, sorted.

    >>> "ledger/envelope" in names()
    True
    """
    return tuple(
        sorted(
            f"{area.name}/{file.name.removesuffix(_SUFFIX)}"
            for area in files("ropewalk").joinpath("schemas/v1").iterdir()
            if area.is_dir()
            for file in area.iterdir()
            if file.name.endswith(_SUFFIX)
        )
    )


@cache
def text(name: str) -> bytes:
    """Return the schema as it is shipped.

    >>> text("shiplog/anchor")[:1]
    b'{'
    >>> text("shiplog/anker")
    Traceback (most recent call last):
    ropewalk.errors.NotFound: no schema is named "shiplog/anker"
    """
    if name not in names():
        advice = f"Known are {', '.join(names())}."
        raise NotFound(f"no schema is named {shown(name)}", advice=advice, name=name)
    return files("ropewalk").joinpath(f"schemas/v1/{name}{_SUFFIX}").read_bytes()


def schema_id(name: str) -> str:
    """Return the `$id` of a schema.

    >>> schema_id("ledger/envelope")
    'https://ea.foundation/schemas/envelope.v1.json'
    """
    found: str = _document(name)["$id"]
    return found


def schema_ids() -> dict[str, str]:
    """Return the `$id` of each schema by its name.

    >>> schema_ids()["shiplog/anchor"]
    'https://gatos.dev/schemas/v1/shiplog/anchor.schema.json'
    """
    return {name: schema_id(name) for name in names()}


@cache
def _document(name: str) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(text(name))
    return document


@cache
def _registry() -> Registry:
    from jsonschema_rs import Registry

    return Registry([(schema_id(name), _document(name)) for name in names()], retriever=_fetch_nothing)


@cache
def _validator(name: str) -> Validator:
    from jsonschema_rs import Draft202012Validator

    return Draft202012Validator(
        _document(name), registry=_registry(), retriever=_fetch_nothing, validate_formats=True, mask=MASK
    )


def _fetch_nothing(uri: str) -> NoReturn:
    raise LookupError(f"{uri} is not shipped, and nothing is ever fetched")


def _title(error: ValidationError, up: int) -> str:
    """Return the title that the schema gives the place; the title of a whole document does not count."""
    part = _subschema(error, up)
    return "" if "$id" in part else str(part.get("title", ""))


def _subschema(error: ValidationError, up: int) -> dict[str, Any]:
    """Return the part of a shipped schema that is `up` steps above the keyword which failed."""
    uri, _, pointer = (error.absolute_keyword_location or "").partition("#")
    part: Any = _document(_names_by_id()[uri]) if uri in _names_by_id() else {}
    for step in pointer.split("/")[1:-up]:
        key = step.replace("~1", "/").replace("~0", "~")
        part = part[int(key)] if isinstance(part, list) else part.get(key, {})
    return part if isinstance(part, dict) else {}


@cache
def _names_by_id() -> dict[str, str]:
    return {each: name for name, each in schema_ids().items()}
