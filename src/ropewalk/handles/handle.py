"""What every handle of a log has: a name, `close`, a `with` block, and an error once it is closed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from ropewalk.disk.closing import Closing
from ropewalk.errors import Usage


class Handle(Closing):
    """One log of a repository. Use it in a `with` block, or call `close()`."""

    kind = "log"
    columns: Sequence[str] = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False

    def close(self) -> None:
        """Release what the handle holds. Acknowledged events do not depend on it; a second call does nothing."""
        self.closed = True

    def check_open(self) -> None:
        """Raise `Usage` if the handle is closed."""
        if self.closed:
            raise Usage(
                f"the handle of {self.kind} {self.name!r} must be open, but it is closed",
                advice="Open the repository again, or keep the `with` block open while you use the handle.",
            )

    def newest(self) -> Iterable[Sequence[object]]:
        """Return the newest entries for a notebook, one row of `columns` each."""
        return ()

    def _repr_html_(self) -> str:
        from ropewalk.pages import html_table

        rows: Iterable[Sequence[object]] = ()
        with suppress(Usage):  # closed
            rows = self.newest()
        return html_table(repr(self)[1:-1], self.columns, rows)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind} {self.name!r}{' closed' if self.closed else ''}>"
