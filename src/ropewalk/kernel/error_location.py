"""Name the file, or the line of it, in which an input error was found: a command may read several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from ropewalk.errors import Invalid, RopewalkError

__all__ = ["locate", "located"]

E = TypeVar("E", bound=RopewalkError)


def locate(error: E, where: str) -> E:
    """Return a copy of the error that names its location; inputs that fail together may share one error.

    >>> locate(Invalid("not JSON"), "trust.json").detail
    'trust.json: not JSON'
    """
    fields = {"input": where, **error.fields}
    return type(error)(f"{where}: {error.detail}", advice=error.advice_now, instance=error.instance, **fields)


@contextmanager
def located(where: str) -> Iterator[None]:
    """Add a location to every `Invalid` raised in the block.

    >>> with located("trust.json"):
    ...     raise Invalid("not JSON")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: trust.json: not JSON
    """
    try:
        yield
    except Invalid as error:
        raise locate(error, where) from error
