"""Marks of very many things in sorted runs: whether one comes twice or is there, in few bytes and little time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class Runs:
    """Marks that were added, in runs that double in size: adding a few costs little, however many there are.

    >>> import numpy as np
    >>> runs = Runs()
    >>> runs.add(np.array([3, 1])), runs.add(np.array([2])), runs.add(np.array([7, 1]))
    (False, False, True)
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray[Any, Any]] = []

    def add(self, marks: np.ndarray[Any, Any]) -> bool:
        """Add marks; whether one of them is there twice now."""
        import numpy as np

        added = np.sort(marks)
        twice = bool((added[1:] == added[:-1]).any()) or any(_meet(run, added).any() for run in self._runs)
        self._runs.append(added)
        while len(self._runs) > 1 and self._runs[-2].size <= 2 * self._runs[-1].size:
            self._runs[-2:] = [np.sort(np.concatenate(self._runs[-2:]), kind="stable")]
        return twice

    def holds(self, marks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return for each mark whether it was added.

        >>> import numpy as np
        >>> runs = Runs()
        >>> runs.add(np.array([3, 1])), runs.holds(np.array([1, 2])).tolist()
        (False, [True, False])
        """
        import numpy as np

        found = np.zeros(marks.size, dtype=bool)
        for run in self._runs:
            found |= _meet(run, marks)
        return found


def _meet(known: np.ndarray[Any, Any], asked: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return for each mark whether it is in a sorted run."""
    import numpy as np

    if not known.size:
        return np.zeros(asked.size, dtype=bool)
    places = np.minimum(np.searchsorted(known, asked), known.size - 1)
    found: np.ndarray[Any, Any] = known[places] == asked
    return found
