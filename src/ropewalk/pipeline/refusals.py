"""Errors on their way out of a Spark worker: Spark keeps only their text, so the facts travel inside it."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager

from ropewalk import errors
from ropewalk.errors import RopewalkError, Unavailable

__all__ = ["MARK", "find_refusal", "marked", "refusals_raised"]

MARK = "ropewalk-refusal:"
_FOUND = re.compile(re.escape(MARK) + r"([A-Za-z0-9+/=]+)")
_KINDS: dict[str, type[RopewalkError]] = {
    name: kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, RopewalkError)
}


def marked(error: RopewalkError) -> RuntimeError:
    """The error as a text that people can read and that `find_refusal` finds again.

    >>> find_refusal(str(marked(errors.SigInvalid("bad seal", height=7)))).fields["height"]
    7
    """
    facts = {
        "kind": type(error).__name__,
        "detail": error.detail,
        "advice": error.advice_now,
        "fields": {name: value for name, value in error.fields.items() if _is_plain(value)},
    }
    packed = b64encode(json.dumps(facts).encode()).decode()
    return RuntimeError(f"{error.code}: {error.detail} [{MARK}{packed}]")


def find_refusal(text: str) -> RopewalkError | None:
    """The error of ours inside a text of Spark's, None if there is none."""
    match = _FOUND.search(text)
    if match is None:
        return None
    facts = json.loads(b64decode(match[1]))
    kind = _KINDS.get(facts["kind"], RopewalkError)
    return kind(facts["detail"], advice=facts["advice"], **facts["fields"])


@contextmanager
def refusals_raised() -> Iterator[None]:
    """Turn what Spark raises back into the refusal it wraps; what is Spark's own stays understandable."""
    try:
        yield
    except RopewalkError:
        raise
    except Exception as error:
        found = find_refusal(str(error))
        if found is not None:
            raise found from error
        if type(error).__module__.startswith(("pyspark", "py4j", "grpc")):
            first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            raise Unavailable(
                f"Spark: {type(error).__name__}: {first[:300]}",
                advice="The whole story is in Spark's log; run again with ROPEWALK_DEBUG=1 to see it.",
            ) from error
        raise


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))
