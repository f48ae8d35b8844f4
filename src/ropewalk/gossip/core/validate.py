"""Payload checks an application states once: a predicate, or a JSON Schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema_rs

from ropewalk.errors import Invalid, InvalidEnvelope
from ropewalk.gossip.core.callbacks import strict_validate
from ropewalk.gossip.core.dag_json import to_json

Validate = Callable[[Any], bool] | dict[str, Any]


def validator(validate: Validate | None) -> Callable[[Any], None]:
    """Return a function that raises InvalidEnvelope for a payload the application does not know.

    Bytes and links reach a schema in their DAG-JSON form. References in a schema are never fetched.

    >>> validator({"type": "object"})({"a": 1})
    >>> validator(lambda payload: payload == 1)(2)
    Traceback (most recent call last):
    ropewalk.errors.InvalidEnvelope: the payload was refused by the log's predicate
    """
    if validate is None:
        return _accept
    if callable(validate):
        return _predicate(strict_validate(validate))
    return _schema(validate)


def _accept(_payload: Any) -> None:
    return None


def _predicate(accepts: Callable[[Any], bool]) -> Callable[[Any], None]:
    def check(payload: Any) -> None:
        if not accepts(payload):
            raise InvalidEnvelope("the payload was refused by the log's predicate", where="", schema=None)

    return check


def _schema(schema: dict[str, Any]) -> Callable[[Any], None]:
    try:
        compiled = jsonschema_rs.validator_for(schema, retriever=_fetch_nothing)
    except jsonschema_rs.ValidationError as error:
        raise Invalid(f"the schema of the log is no JSON Schema: {error.message}") from error

    def check(payload: Any) -> None:
        try:
            compiled.validate(to_json(payload))
        except jsonschema_rs.ValidationError as error:
            where = "".join(f"/{step}" for step in error.instance_path)
            raise InvalidEnvelope(
                f"payload{where}: {error.message}", where=where, schema=schema.get("$id")
            ) from error

    return check


def _fetch_nothing(uri: str) -> Any:
    raise Invalid(f"the schema refers to {uri}, and nothing found in data is fetched")
