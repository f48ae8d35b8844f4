"""Streams (S2): what changes in a repository, told to whoever subscribed, as it happens.

frames       what travels, both ways                  patterns     which refs and topics a name stands for
window       the frames kept for catching up          access       who may see what
connection   one subscriber, as the server has it     subscriber   one subscription, as the client has it
proxy        a stream served again                    proxyclient  one subscriber of a proxy
relay        the window of a proxy                    carried      what a proxy is subscribed to

Nothing here does I/O: text comes in, text goes out, and time is an argument. `follow` and `Following` are the client
for programs, `serve` the server, `StreamProxy` a proxy; they live in `node`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropewalk.stream.core.connection import StreamLimits
from ropewalk.stream.core.frames import BusEvent, ErrorFrame, RefUpdate
from ropewalk.stream.core.subscriber import Lost
from ropewalk.stream.core.window import WindowBounds

if TYPE_CHECKING:
    from ropewalk.stream.serve.follow import Following, follow
    from ropewalk.stream.serve.proxy_server import StreamProxy
    from ropewalk.stream.serve.repository_stream import RepositoryStream as serve

__all__ = [
    "BusEvent",
    "ErrorFrame",
    "Following",
    "Lost",
    "RefUpdate",
    "StreamLimits",
    "StreamProxy",
    "WindowBounds",
    "follow",
    "serve",
]

_LAZY = {
    "Following": ("ropewalk.stream.serve.follow", "Following"),
    "StreamProxy": ("ropewalk.stream.serve.proxy_server", "StreamProxy"),
    "follow": ("ropewalk.stream.serve.follow", "follow"),
    "serve": ("ropewalk.stream.serve.repository_stream", "RepositoryStream"),
}


def __getattr__(name: str) -> Any:
    # The engine does no I/O; its front door hands on to the composition behind it, on first use only (PEP 562).
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
