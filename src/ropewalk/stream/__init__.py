"""stream (S2): live delivery of what changes in a repository to subscribers.

`ropewalk.open(path).stream()` serves a repository; `follow` (threads) and `Following` (asyncio) subscribe to a server;
`StreamProxy` serves the stream of another server. `core` holds the state machines, which do no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk._lazy import lazy_exports

if TYPE_CHECKING:
    from ropewalk.stream.core.connection import StreamLimits as StreamLimits
    from ropewalk.stream.core.frames import BusEvent as BusEvent
    from ropewalk.stream.core.frames import ErrorFrame as ErrorFrame
    from ropewalk.stream.core.frames import RefUpdate as RefUpdate
    from ropewalk.stream.core.subscriber import Lost as Lost
    from ropewalk.stream.core.window import WindowBounds as WindowBounds
    from ropewalk.stream.serve.follow import Following as Following
    from ropewalk.stream.serve.follow import follow as follow
    from ropewalk.stream.serve.proxy_server import StreamProxy as StreamProxy
    from ropewalk.stream.serve.repository_stream import RepositoryStream

    serve = RepositoryStream

__getattr__, __dir__ = lazy_exports(__name__, __file__)
