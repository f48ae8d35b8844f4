"""What every handle of a log has: a name, `close`, a `with` block, and an error once it is closed."""

from __future__ import annotations

from ropewalk.disk.closing import Closing
from ropewalk.errors import Usage


class Handle(Closing):
    """One log of a repository. Use it in a `with` block, or call `close()`."""

    kind = "log"

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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind} {self.name!r}{' closed' if self.closed else ''}>"
