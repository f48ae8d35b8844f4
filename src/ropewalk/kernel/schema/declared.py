"""JSON Schemas that others declare: Draft 2020-12, closed, bounded, compiled once.

A shipped schema is ours; a declared one comes with a document and validates what remote peers send. So it is read
before it is compiled, and refused if its answer could hang on anything but its own text, or cost without bound:

- every keyword is known. A misspelt one would be skipped without a word; what only describes may begin with `x-`
- references begin with `#` and lead to a schema in the same document; nothing is ever fetched
- no schema leads back to itself, and written out in full it has at most `PARTS_MAX` parts
- what it judges has, times those parts, a size of at most `COST_MAX`: a choice of a thousand looks at every item a
  thousand times
- formats are asserted, unknown ones refused; patterns are matched in linear time, so they know no look-around
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ropewalk.errors import Invalid
from ropewalk.kernel import jcs
from ropewalk.kernel.json_check import pointer, shown
from ropewalk.kernel.schema.faults import MASK, SchemaFault, find_fault, size_of, tell_fault

if TYPE_CHECKING:  # a heavy import, for those who declare schemas
    from jsonschema_rs import Validator

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
PARTS_MAX: Final = 10_000  # schemas in a schema, each counted as often as it is referred to
COST_MAX: Final = 50_000_000  # parts times size: some ten seconds, where every part looks at everything
DEPTH_MAX: Final = 128  # as deep as JSON may be; the validator calls itself once a step
_VALUE_BYTES: Final = 256  # of `enum` and `const` count as one part more: every fault holds a copy of them
_REPEATS: Final = 3  # how often `unevaluated…` makes the validator look at what applies in the same place

_FRAGMENT: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@/?-]*")  # RFC 3986, without what is written with %
_ONE: Final = frozenset((
    "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then", "unevaluatedItems",
    "unevaluatedProperties",
))  # fmt: skip
_MANY: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_NAMED: Final = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
_KEPT: Final = frozenset(("$defs", "definitions"))  # applied only where something refers to them
_HERE: Final = frozenset(("$ref", "allOf", "anyOf", "dependentSchemas", "else", "if", "not", "oneOf", "then"))
_PLAIN: Final = frozenset((
    "$comment", "$id", "$ref", "$schema", "const", "contentEncoding", "contentMediaType", "default",
    "dependentRequired", "deprecated", "description", "enum", "examples", "exclusiveMaximum", "exclusiveMinimum",
    "format", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum", "minContains", "minItems",
    "minLength", "minProperties", "minimum", "multipleOf", "pattern", "readOnly", "required", "title", "type",
    "uniqueItems", "writeOnly",
))  # fmt: skip
_KEYWORDS: Final = _ONE | _MANY | _NAMED | _PLAIN
FORMATS: Final = frozenset((
    "date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri",
    "iri-reference", "json-pointer", "regex", "relative-json-pointer", "time", "uri", "uri-reference", "uri-template",
    "uuid",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeclaredSchema:
    """A schema that was read, found sound, and compiled; `declare` makes it."""

    raw: bytes
    validator: Validator = field(repr=False, compare=False)
    parts: int

    def fault(self, value: jcs.Json, size_max: int | None = None) -> SchemaFault | None:
        """Return the first thing in the value that does not fit, or None; count its size if `size_max` demands it."""
        enough = COST_MAX // self.parts
        if (size_max is None or size_max > enough) and size_of(value, enough) > enough:
            return SchemaFault("", "it is too large to be held against a schema of so many parts")
        return find_fault(self.validator, value, parts=self.parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return declare, (self.raw,)  # what is compiled cannot travel


@lru_cache(maxsize=1024)
def declare(raw: bytes) -> DeclaredSchema:
    """Return the schema in these canonical bytes, ready to be applied; `Invalid` if it is not sound.

    >>> order = declare(b'{"properties":{"count":{"minimum":1}},"required":["count"]}')
    >>> order.fault({"count": 2})
    >>> str(order.fault({"count": 0}))
    '/count: 0 is less than the minimum of 1'
    >>> declare(b'{"requierd":["count"]}')
    Traceback (most recent call last):
    ropewalk.errors.Invalid: schema: keyword "requierd" is not known
    """
    from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError

    document = jcs.parse(raw)
    parts: dict[str, _Part] = {}
    _read(document, (), parts)
    _check_references(parts)
    weight, _ = _weigh("", parts, {}, [])
    assert isinstance(document, dict | bool)
    if isinstance(document, dict):
        document.pop("$id", None)  # a name, and nothing may be looked up by it
    try:
        validator = Draft202012Validator(
            document,
            retriever=_fetch_nothing,
            validate_formats=True,
            ignore_unknown_formats=False,
            mask=MASK,
            pattern_options=RegexOptions(),
        )
    except ValidationError as error:
        fault = tell_fault(error)
        if error.kind.value == "regex":
            text = f"{shown(error.instance)} is no pattern, or one with look-around, back-references or huge counts"
            fault = SchemaFault(fault.where, text)
        raise _wrong(fault.where, fault.detail) from None
    return DeclaredSchema(raw, validator, weight)


@dataclass(slots=True)
class _Part:
    """What one schema in a document leads to: in the same place of the payload, and in places below it."""

    here: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    refers: str | None = None
    repeats: bool = False
    weight: int = 1


def _read(value: jcs.Json, way: tuple[str | int, ...], parts: dict[str, _Part]) -> None:
    """Take stock of a schema and of those in it."""
    at = pointer(way)
    part = parts[at] = _Part()
    if len(parts) > PARTS_MAX:
        raise _wrong("", f"more than {PARTS_MAX} parts")
    if isinstance(value, bool):
        return
    if not isinstance(value, dict):
        raise _wrong(at, "a schema is an object, true or false")
    for keyword, item in value.items():
        _check_plain(keyword, item, at)
        if keyword == "$ref":
            part.refers = str(item)[1:]
            part.here.append(part.refers)
            continue
        for step, inner in _schemas(keyword, item, at):
            below = (*way, keyword, *step)
            _read(inner, below, parts)
            if keyword not in _KEPT:
                (part.here if keyword in _HERE else part.below).append(pointer(below))
    part.weight += sum(
        len(jcs.encode(value[name])) // _VALUE_BYTES for name in ("const", "enum") if name in value
    )
    part.repeats = not value.keys().isdisjoint(("unevaluatedItems", "unevaluatedProperties"))


def _schemas(keyword: str, item: jcs.Json, at: str) -> list[tuple[tuple[str | int, ...], jcs.Json]]:
    """Return the schemas under a keyword, each with the step that leads from the keyword to it."""
    if keyword in _ONE:
        return [((), item)]
    if keyword in _MANY:
        if not isinstance(item, list):
            raise _wrong(f"{at}/{keyword}", "a list of schemas is expected")
        return [((number,), each) for number, each in enumerate(item)]
    if keyword in _NAMED:
        if not isinstance(item, dict):
            raise _wrong(f"{at}/{keyword}", "an object of schemas is expected")
        return [((name,), each) for name, each in item.items()]
    return []


def _check_plain(keyword: str, item: jcs.Json, at: str) -> None:
    if keyword not in _KEYWORDS and not keyword.startswith("x-"):
        raise _wrong(at, f"keyword {shown(keyword)} is not known")
    if keyword == "$schema" and (not isinstance(item, str) or item.removesuffix("#") != DIALECT):
        raise _wrong(at, f"dialect {shown(item)} is not known; {DIALECT} is")
    if keyword == "$id" and at:
        raise _wrong(at, "only the whole schema may have an $id")
    if keyword == "format" and not (isinstance(item, str) and item in FORMATS):
        raise _wrong(at, f"format {shown(item)} is not known")
    # With %, one place could be written in two ways, and the validator might read another than we did.
    if keyword == "$ref" and not (isinstance(item, str) and item.startswith("#") and "%" not in item):
        raise _wrong(at, f"reference {shown(item)} leaves the schema; it must begin with # and have no %")
    if keyword == "$ref" and not _FRAGMENT.fullmatch(str(item)[1:]):
        raise _wrong(
            at, f"reference {shown(item)} has a character that no URI has; give the schema another name"
        )


def _check_references(parts: dict[str, _Part]) -> None:
    for at, part in parts.items():
        if part.refers is not None and part.refers not in parts:
            raise _wrong(at, f"reference {shown('#' + part.refers)} leads to no schema")


def _weigh(
    at: str, parts: dict[str, _Part], known: dict[str, tuple[int, int]], above: list[str]
) -> tuple[int, int]:
    """Return how many schemas this one is when every reference is written out, and how deep it then is."""
    if at in above:
        raise _wrong(at, "it leads back to itself")
    if at not in known:
        if len(above) >= DEPTH_MAX:
            raise _wrong(at, f"deeper than {DEPTH_MAX} with its references")
        above.append(at)
        part = parts[at]
        weight, depth = part.weight, 0
        for inner in (*part.here, *part.below):
            one, steps = _weigh(inner, parts, known, above)
            weight += one * (_REPEATS if part.repeats and inner in part.here else 1)
            depth = max(depth, steps)
        if weight > PARTS_MAX:
            raise _wrong(at, f"more than {PARTS_MAX} parts when its references are written out")
        above.pop()
        known[at] = weight, depth + 1
    weight, depth = known[at]
    if len(above) + depth > DEPTH_MAX:
        raise _wrong(at, f"deeper than {DEPTH_MAX} with its references")
    return weight, depth


def _fetch_nothing(uri: str) -> NoReturn:
    raise LookupError(f"{uri} is not here, and nothing is ever fetched")


def _wrong(at: str, what: str) -> Invalid:
    return Invalid(f"schema{' ' + shown(at)[1:-1] if at else ''}: {what}")
