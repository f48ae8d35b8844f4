"""gitlog: event logs in a plain git repository (S0 Shiplog, S1 Message Plane, shiplog-compat).

One engine, three layouts. `ropewalk.open(path).events(ns)` and `.messages(topic)` are its front door.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk._lazy import lazy_exports

if TYPE_CHECKING:
    from ropewalk.gitlog.consumers.cursor import Cursor as Cursor
    from ropewalk.gitlog.core.envelope import Draft as Draft
    from ropewalk.gitlog.core.envelope import Event as Event
    from ropewalk.gitlog.core.planning import Receipt as Receipt
    from ropewalk.gitlog.core.reading import EventPage as EventPage

__getattr__, __dir__ = lazy_exports(__name__, __file__)
