"""What an application's callbacks may return: anything else is an error, so that no rule is switched off silently."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ropewalk.errors import Usage

ADVICE = "Open the log with ropewalk.gossip.open, which runs coroutine functions to their end, or use a plain function."


def _refuse_awaitable(name: str, result: Any) -> None:
    """Raise Usage for a coroutine: the engine has no event loop, and what does not run decides nothing."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise Usage(f"{name} returned a coroutine, which was not run", advice=ADVICE)


def strict_access(access: Callable[..., Any]) -> Callable[..., None]:
    """Return the rule, which must return None or raise Denied.

    >>> strict_access(lambda history, signed: False)(None, None)
    Traceback (most recent call last):
    ropewalk.errors.Usage: access must return None or raise Denied, got False
    """

    def check(history: Any, signed: Any) -> None:
        result = access(history, signed)
        if result is not None:
            _refuse_awaitable("access", result)
            raise Usage(
                f"access must return None or raise Denied, got {result!r:.80}",
                advice="Raise ropewalk.errors.Denied to refuse a message.",
            )

    return check


def strict_validate(validate: Callable[[Any], Any]) -> Callable[[Any], bool]:
    """Return the predicate, which must return True or False."""

    def check(payload: Any) -> bool:
        result = validate(payload)
        if not isinstance(result, bool):
            _refuse_awaitable("validate", result)
            raise Usage(
                f"validate must return True or False, got {result!r:.80}",
                advice="Return a bool; to refuse a payload, return False.",
            )
        return result

    return check


def strict_apply(apply: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Return the function, which may return anything but a coroutine."""
    if apply is None:
        return None
    call = apply

    def run(*given: Any) -> Any:
        result = call(*given)
        _refuse_awaitable("apply", result)
        return result

    return run
