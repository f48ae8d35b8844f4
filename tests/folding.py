"""Many small cases as one test: to collect and report thousands of vectors takes longer than to check them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["fold"]


def fold(
    names: str | tuple[str, ...], cases: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Run a test for each case as `pytest.mark.parametrize` does, but in one go; a failure names its case.

    >>> @fold("number", [1, 2])
    ... def test_all(number: int) -> None:
    ...     assert number < 2
    >>> try:
    ...     test_all()
    ... except AssertionError as error:
    ...     print(error.__notes__)
    ['case 1: 2']
    """
    kept = list(cases)
    assert kept, "no cases"

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        def run() -> None:
            for number, case in enumerate(kept):
                values = getattr(case, "values", None)
                if not isinstance(values, tuple):  # not made by `pytest.param`
                    values = (case,) if isinstance(names, str) else tuple(case)
                try:
                    test(*values)
                except BaseException as error:
                    error.add_note(f"case {number}: {getattr(case, 'id', None) or case!r}")
                    raise

        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        return run

    return decorate
