"""Append-only event logs you can prove: in git, between peers, or as a sealed ledger.

`init` makes a repository, `open` appends to its git logs and reads them, `verify` checks everything in it. The other
engines have doors of their own: `from ropewalk import gossip, ledger, pipeline`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ropewalk.errors import RopewalkError
    from ropewalk.gitlog.consumers.cursor import Cursor
    from ropewalk.gitlog.core.envelope import Event
    from ropewalk.gitlog.core.planning import Receipt
    from ropewalk.kernel.entry import Entry
    from ropewalk.kernel.keys import PublicKey, SigningKey
    from ropewalk.kernel.report import Report
    from ropewalk.ledger.proof.proof import Proof
    from ropewalk.repository import init
    from ropewalk.repository import open_repository as open
    from ropewalk.verification import verify_repository as verify

__version__ = "0.1.0"

__all__ = [
    "Cursor",
    "Entry",
    "Event",
    "Proof",
    "PublicKey",
    "Receipt",
    "Report",
    "RopewalkError",
    "SigningKey",
    "__version__",
    "init",
    "open",
    "verify",
]

# Public name → where it lives; imported on first use, so that `import ropewalk` loads nothing else.
_LAZY = {
    "Cursor": ("ropewalk.gitlog.consumers.cursor", "Cursor"),
    "Entry": ("ropewalk.kernel.entry", "Entry"),
    "Event": ("ropewalk.gitlog.core.envelope", "Event"),
    "Proof": ("ropewalk.ledger.proof.proof", "Proof"),
    "PublicKey": ("ropewalk.kernel.keys", "PublicKey"),
    "Receipt": ("ropewalk.gitlog.core.planning", "Receipt"),
    "Report": ("ropewalk.kernel.report", "Report"),
    "RopewalkError": ("ropewalk.errors", "RopewalkError"),
    "SigningKey": ("ropewalk.kernel.keys", "SigningKey"),
    "init": ("ropewalk.repository", "init"),
    "open": ("ropewalk.repository", "open_repository"),
    "verify": ("ropewalk.verification", "verify_repository"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ropewalk' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
