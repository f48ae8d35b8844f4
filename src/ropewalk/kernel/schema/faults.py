"""What is wrong with a document, in words: the first fault a schema finds, with its place.

The validator decides at full speed; only refused documents come here. Of several faults the same one is always
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from ropewalk.kernel.json_check import pointer, shown
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:  # a heavy import: the first validation pays for it, not the first import of the kernel
    from jsonschema_rs import ValidationError, Validator

# How much of a document and of its schema may be looked at to tell what is wrong; see `_errors`.
_COMPARED_MAX: Final = 1_000  # size of a document whose faults are compared
_COMPARED_COST_MAX: Final = 30_000  # the same, times the parts of its schema
_TOLD_COST_MAX: Final = 500_000  # beyond this not even one fault is described: 40 MB and 0.2 s

MASK: Final = "\0"  # where the validator writes this, the text has what was found, cut to size
_TEXT_MAX: Final = 200  # characters; a schema that others declare may have long choices

# What a person should hear of first when one place breaks several keywords.
_RANK: Final = {
    name: rank
    for rank, name in enumerate(
        ("type", "required", "additionalProperties", "const", "enum", "pattern", "format")
    )
}

Title = Callable[["ValidationError", int], str]
"""What a schema calls, in words for people, the part so many steps above the keyword that failed; may be empty."""


class SchemaFault(NamedTuple):
    """One thing that is wrong: where, as a JSON pointer, and what."""

    where: str
    detail: str

    def __str__(self) -> str:
        return f"{shown(self.where)[1:-1]}: {self.detail}" if self.where else self.detail


def _untitled(_error: ValidationError, _up: int) -> str:
    return ""


def find_fault(
    validator: Validator, value: object, title: Title = _untitled, parts: int = 0
) -> SchemaFault | None:
    """Return the first thing in the value that does not fit, or None. What is not JSON at all raises ValueError.

    `parts` is the size of a schema that is not ours: for a large document under a large schema only the refusal is
    reported.

    >>> from jsonschema_rs import Draft202012Validator
    >>> numbers = Draft202012Validator({"items": {"type": "integer"}}, mask=MASK)
    >>> find_fault(numbers, [1, 2])
    >>> str(find_fault(numbers, [1, "two"]))
    '/1: "two" is not of type "integer"'
    """
    if validator.is_valid(value):
        return None
    errors = _errors(validator, value, parts)
    if not errors:
        return SchemaFault("", "does not fit, and is too large to say where")
    return _first(each for error in errors for each in _complaints(error, title)).fault


def tell_fault(error: ValidationError) -> SchemaFault:
    """Return one error of the validator in our words.

    >>> from jsonschema_rs import Draft202012Validator, ValidationError
    >>> try:
    ...     Draft202012Validator({"type": "text"})
    ... except ValidationError as error:
    ...     tell_fault(error).where
    '/type'
    """
    return _first(_complaints(error, _untitled)).fault


def _errors(validator: Validator, value: object, parts: int) -> list[ValidationError]:
    """Return what is wrong: everything in a document of common size, the first thing met in a large one.

    Each error takes some 30 µs to describe and holds a copy of what it is about, so not every fault of a large
    document is described.
    """
    from jsonschema_rs import ValidationError

    size = size_of(value, _TOLD_COST_MAX // max(parts, 1))
    if size <= _COMPARED_MAX and size * parts <= _COMPARED_COST_MAX:
        return list(islice(validator.iter_errors(value), _COMPARED_MAX))
    if size * parts > _TOLD_COST_MAX:
        return []
    try:
        validator.validate(value)
    except ValidationError as error:
        return [error]
    return []


def size_of(value: object, enough: int) -> int:
    """Return how many members, items and, by sixteens, characters there are; counted until it is more than enough.

    >>> size_of({"a": [1, 2], "b": "x" * 32}, 100)
    6
    """
    count, waiting = 0, [value]
    while waiting and count <= enough:
        one = waiting.pop()
        if isinstance(one, dict | list):
            count += len(one)
            waiting += islice(one.values() if isinstance(one, dict) else one, enough)
        elif isinstance(one, str):
            count += len(one) >> 4
    return count


class _Complaint(NamedTuple):
    """One thing that is wrong, and what it is chosen by when there are several: its place, then its keyword."""

    place: tuple[tuple[int, int, str], ...]
    rank: int
    fault: SchemaFault


def _first(complaints: Iterable[_Complaint]) -> _Complaint:
    """Return the same fault every time: outer places before inner ones; of one place, in the schema's order."""
    return min(complaints, key=lambda each: (each.place, each.rank))


def _complaints(error: ValidationError, title: Title) -> Iterator[_Complaint]:
    from jsonschema_rs import ValidationErrorKind as Kind

    match error.kind:
        case Kind.AdditionalProperties(unexpected) | Kind.UnevaluatedProperties(unexpected):
            for member in sorted(unexpected):
                yield _complaint(error, f"{shown(member)} has no place here", member)
        case Kind.FalseSchema():
            yield _complaint(error, f"has no place here{_because(error, title, up=2)}")
        case Kind.Required(member):
            yield _complaint(error, f"{shown(member)} is missing{_because(error, title)}")
        case Kind.PropertyNames(inner):
            wanted = title(inner, 1)
            why = f", expected {wanted}" if wanted else f": {_first(_complaints(inner, title)).fault.detail}"
            yield _complaint(error, f"key {shown(inner.instance)}{why}")
        case Kind.AnyOf(branches) | Kind.OneOfNotValid(branches):
            yield _of_branches(error, branches, title)
        case _:
            wanted = "" if error.kind.name in ("const", "enum") else title(error, 1)
            found = f"found {_found(error.instance)}, expected {wanted}" if wanted else _message(error)
            yield _complaint(error, found)


def _complaint(error: ValidationError, detail: str, *below: str) -> _Complaint:
    way = [*error.instance_path, *below]
    place = tuple((part, 0, "") if isinstance(part, int) else (0, 1, part) for part in way)
    return _Complaint(place, _RANK.get(error.kind.name, len(_RANK)), SchemaFault(pointer(way), detail))


def _of_branches(error: ValidationError, branches: list[list[ValidationError]], title: Title) -> _Complaint:
    """Return what the schema calls the choice, or the complaint of the branch that comes closest."""
    if wanted := title(error, 1):
        return _complaint(error, f"found {_found(error.instance)}, expected {wanted}")

    def distance(branch: list[ValidationError]) -> tuple[bool, int]:
        other_type = any(
            each.kind.name == "type" and each.instance_path == error.instance_path for each in branch
        )
        return other_type, len(branch)

    return _first(each for one in min(branches, key=distance) for each in _complaints(one, title))


def _message(error: ValidationError) -> str:
    """Return the validator's text, with what was found; a constant does not name it."""
    found = _found(error.instance)
    text = error.message.replace(MASK, found)
    return printable(text if MASK in error.message else f"found {found}, {text}", _TEXT_MAX)


def _found(value: object) -> str:
    if value is None or isinstance(value, bool):
        return orjson.dumps(value).decode()
    if isinstance(value, dict):
        return "an object" if value else "an empty object"
    if isinstance(value, list):
        return "an array" if value else "an empty array"
    return shown(value)


def _because(error: ValidationError, title: Title, up: int = 1) -> str:
    reason = title(error, up)
    return f": {reason}" if reason else ""
