"""The shipped JSON Schemas, applied: what breaks one is told in words, with the place and the schema's id.

A schema's name is its path below `ropewalk/schemas/v1`: `shiplog/event_envelope`, `ledger/envelope`. Its `$id` is the
one of the specification, and it is only a name: references between schemas are answered from this package, and nothing
is ever fetched. Formats are asserted.

The texts are read through `importlib.resources`. They are part of the program, like the module itself, so this is the
one place of the kernel that may.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import orjson

from ropewalk.errors import InvalidEnvelope, NotFound
from ropewalk.kernel.jsonscan import shown

if TYPE_CHECKING:  # a heavy import: the first validation pays for it, not the first import of the kernel
    from jsonschema_rs import Registry, ValidationError, Validator

__all__ = ["names", "schema_id", "schema_ids", "text", "validate"]

_SUFFIX: Final = ".schema.json"
_COMPARED_MAX: Final = 1_000  # members and items of a document whose faults are all looked at; see `_errors`

# What a person should hear of first when one place breaks several keywords.
_RANK: Final = {
    name: rank
    for rank, name in enumerate(
        ("type", "required", "additionalProperties", "const", "enum", "pattern", "format")
    )
}
_TYPES: Final = {
    "array": "an array",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}
_FORMATS: Final = {"date-time": "an RFC 3339 date-time, as 2024-11-01T12:00:00Z", "uri": "a URI"}
_LIMITS: Final = {
    "minLength": "a length of at least {}",
    "maxLength": "a length of at most {}",
    "minItems": "a length of at least {}",
    "maxItems": "a length of at most {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
}


def validate(name: str, value: object) -> None:
    """Return if the value fits the schema, else raise with the first thing that does not.

    >>> event = {"ulid": "01HF4Y9Q1SM8Q7K9DK2R3V4AWB", "ns": "demo", "type": "made", "payload": {}}
    >>> validate("shiplog/event_envelope", event)
    >>> validate("shiplog/event_envelope", {**event, "payload": 5})
    Traceback (most recent call last):
    ropewalk.errors.InvalidEnvelope: /payload: found 5, expected an object (shiplog/event_envelope)
    """
    validator = _validator(name)
    try:
        if validator.is_valid(value):
            return
        errors = _errors(validator, value)
    except ValueError as error:  # not JSON at all: a set, bytes, a key that is no string
        raise InvalidEnvelope(f"{error} ({name})", where="", schema=schema_id(name)) from None
    first = _first(complaint for error in errors for complaint in _complaints(error))
    detail = f"{shown(first.where)[1:-1]}: {first.detail}" if first.where else first.detail
    raise InvalidEnvelope(f"{detail} ({name})", where=first.where, schema=schema_id(name))


@cache
def names() -> tuple[str, ...]:
    """The names of all shipped schemas, sorted.

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
    """The schema as it is shipped.

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
    """The `$id` of a schema.

    >>> schema_id("ledger/envelope")
    'https://ea.foundation/schemas/envelope.v1.json'
    """
    found: str = _document(name)["$id"]
    return found


def schema_ids() -> dict[str, str]:
    """The `$id` of each schema by its name.

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
        _document(name), registry=_registry(), retriever=_fetch_nothing, validate_formats=True
    )


def _fetch_nothing(uri: str) -> NoReturn:
    raise LookupError(f"{uri} is not shipped, and nothing is ever fetched")


# --- saying what is wrong ---


def _errors(validator: Validator, value: object) -> list[ValidationError]:
    """What is wrong: everything in a document of common size, the first thing met in a large one.

    Each error costs some 30 µs to describe, so a stranger's megabyte with a fault in every item must not be told all.
    """
    from jsonschema_rs import ValidationError

    if _is_small(value):
        return list(validator.iter_errors(value))
    try:
        validator.validate(value)
    except ValidationError as error:
        return [error]
    return []


def _is_small(value: object) -> bool:
    count, waiting = 0, [value]
    while waiting and count <= _COMPARED_MAX:
        one = waiting.pop()
        if isinstance(one, dict | list):
            count += len(one)
            waiting += islice(one.values() if isinstance(one, dict) else one, _COMPARED_MAX)
    return count <= _COMPARED_MAX


class _Complaint(NamedTuple):
    """One thing that is wrong, and what it is chosen by when there are several: its place, then its keyword."""

    place: tuple[tuple[int, int, str], ...]
    rank: int
    detail: str
    where: str


def _first(complaints: Iterable[_Complaint]) -> _Complaint:
    """The same one every time: outer places before inner ones; of one place and keyword, in the schema's order."""
    return min(complaints, key=lambda each: (each.place, each.rank))


def _complaints(error: ValidationError) -> Iterator[_Complaint]:
    from jsonschema_rs import ValidationErrorKind as Kind

    match error.kind:
        case Kind.AdditionalProperties(unexpected):
            for member in sorted(unexpected):
                yield _complaint(error, f"{shown(member)} has no place here", member)
        case Kind.FalseSchema():
            yield _complaint(error, f"has no place here{_because(error, up=2)}")
        case Kind.Required(member):
            yield _complaint(error, f"{shown(member)} is missing{_because(error)}")
        case Kind.PropertyNames(inner):
            wanted = _title(inner) or inner.message
            yield _complaint(error, f"key {shown(inner.instance)}, expected {wanted}")
        case Kind.AnyOf(branches) | Kind.OneOfNotValid(branches):
            yield _of_branches(error, branches)
        case _:
            yield _complaint(error, f"found {_found(error.instance)}, expected {_wanted(error)}")


def _complaint(error: ValidationError, detail: str, *below: str) -> _Complaint:
    way = [*error.instance_path, *below]
    place = tuple((part, 0, "") if isinstance(part, int) else (0, 1, part) for part in way)
    where = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in way)
    return _Complaint(place, _RANK.get(error.kind.name, len(_RANK)), detail, where)


def _of_branches(error: ValidationError, branches: list[list[ValidationError]]) -> _Complaint:
    """What the schema says the choice is, or the complaint of the branch that comes closest."""
    if title := _title(error):
        return _complaint(error, f"found {_found(error.instance)}, expected {title}")

    def distance(branch: list[ValidationError]) -> tuple[bool, int]:
        other_type = any(
            each.kind.name == "type" and each.instance_path == error.instance_path for each in branch
        )
        return other_type, len(branch)

    return _first(each for one in min(branches, key=distance) for each in _complaints(one))


def _wanted(error: ValidationError) -> str:
    keyword, limit = error.kind.name, error.kind.value
    if keyword == "const":
        return shown(limit)
    if keyword == "enum":
        return "one of " + _either(limit)
    if title := _title(error):
        return title
    if keyword == "type":
        return " or ".join(_TYPES[each] for each in limit)
    if keyword in _LIMITS:
        return _LIMITS[keyword].format(limit)
    return _FORMATS.get(str(limit)) or f"{keyword} {shown(limit)}"


def _either(options: list[Any]) -> str:
    *most, last = map(shown, options)
    return f"{', '.join(most)} or {last}" if most else last


def _found(value: object) -> str:
    if value is None or isinstance(value, bool):
        return orjson.dumps(value).decode()
    if isinstance(value, dict):
        return "an object" if value else "an empty object"
    if isinstance(value, list):
        return "an array" if value else "an empty array"
    return shown(value)


def _because(error: ValidationError, up: int = 1) -> str:
    title = _title(error, up)
    return f": {title}" if title else ""


def _title(error: ValidationError, up: int = 1) -> str:
    """What the schema says of the place in its own words; the title of a whole document does not count."""
    part = _subschema(error, up)
    return "" if "$id" in part else str(part.get("title", ""))


def _subschema(error: ValidationError, up: int = 1) -> dict[str, Any]:
    """The part of a shipped schema that is `up` steps above the keyword which failed."""
    uri, _, pointer = (error.absolute_keyword_location or "").partition("#")
    part: Any = _document(_names_by_id()[uri]) if uri in _names_by_id() else {}
    for step in pointer.split("/")[1:-up]:
        key = step.replace("~1", "/").replace("~0", "~")
        part = part[int(key)] if isinstance(part, list) else part.get(key, {})
    return part if isinstance(part, dict) else {}


@cache
def _names_by_id() -> dict[str, str]:
    return {each: name for name, each in schema_ids().items()}
