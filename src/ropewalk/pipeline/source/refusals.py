"""Errors on their way out of a Spark worker: Spark keeps only their text, so the facts travel inside it, readably."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from ropewalk import errors
from ropewalk.errors import RopewalkError, Unavailable

MARK = "ropewalk-refusal: "
_KINDS: dict[str, type[RopewalkError]] = {
    name: kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, RopewalkError)
}


def marked(error: RopewalkError) -> RuntimeError:
    """Return the error as a text that people can read and that `find_refusal` finds again.

    >>> print(marked(errors.SigInvalid("bad seal", height=7, advice="Ask the sender.")))
    SigInvalid: bad seal
    Ask the sender.
    ropewalk-refusal: {"kind": "SigInvalid", "detail": "bad seal", "advice": "Ask the sender.", "fields": {"height": 7}}
    """
    facts = {
        "kind": type(error).__name__,
        "detail": error.detail,
        "advice": error.advice_now,
        "fields": {name: value for name, value in error.fields.items() if _is_plain(value)},
    }
    lines = [f"{error.code}: {error.detail}", error.advice_now, f"{MARK}{json.dumps(facts)}"]
    return RuntimeError("\n".join(line for line in lines if line))


def find_refusal(text: str) -> RopewalkError | None:
    """Return the error of ours inside a text of Spark's, None if there is none.

    >>> find_refusal(f"Py4J: {marked(errors.SigInvalid('bad seal', height=7))} at org.apache").fields["height"]
    7
    """
    for part in text.split(MARK)[1:]:
        try:
            facts, _ = json.JSONDecoder().raw_decode(part)
            kind = _KINDS.get(facts["kind"], RopewalkError)
            return kind(facts["detail"], advice=facts["advice"], **facts["fields"])
        except (ValueError, TypeError, KeyError):
            continue  # cut short by Spark, or foreign text
    return None


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
                advice="Run again with --debug to see Spark's log and the stack traces.",
            ) from error
        raise


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))
