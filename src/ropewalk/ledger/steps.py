"""Steps of reports that say what was compared, whether it held or not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from ropewalk.errors import RopewalkError
from ropewalk.kernel.report import Step
from ropewalk.ledger.block import BlockRecord, check_signature
from ropewalk.ledger.trust import Trust

__all__ = ["compared", "describe_moment", "short", "signer_step"]


def short(digest: bytes) -> str:
    """As much of a digest as a person compares.

    >>> short(bytes(32))
    '0000000000000000…'
    """
    return f"{digest.hex()[:16]}…"


def describe_moment(text: str) -> str | None:
    """A time as a person reads it, where the text is nanoseconds as in a block header; else None.

    >>> describe_moment("1794839847447472664"), describe_moment("yesterday")
    ('2026-11-16 14:37:27 UTC', None)
    """
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        return None
    return datetime.fromtimestamp(int(text) // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def compared(name: str, what: str, act: Callable[[], None]) -> Step:
    """A step that holds unless `act` raises; `what` it looked at is said either way.

    >>> compared("two", "1 and 2", lambda: None)
    Step(name='two', status='passed', detail='1 and 2', fields={})
    """
    try:
        act()
    except RopewalkError as error:
        return Step(name, "failed", f"{error.detail} ({what})")
    return Step(name, "passed", what)


def signer_step(name: str, block: BlockRecord, trust: Trust) -> Step:
    """Whether a block is sealed by somebody the trust file names."""
    signers = trust.block_signers
    what = f"{block.signer.did()}, one of {len(signers)} trusted to seal blocks"
    if block.signer not in signers:
        return Step(name, "failed", f"block {block.height}: signer {block.signer.did()} is not trusted")
    return compared(name, what, lambda: check_signature(block))
