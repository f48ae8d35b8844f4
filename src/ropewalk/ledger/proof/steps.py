"""Steps of reports that name what was compared, whether they passed or failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from ropewalk.errors import RopewalkError
from ropewalk.kernel.report import Step
from ropewalk.ledger.block.block import BlockRecord
from ropewalk.ledger.keys.history import KeyHistory, KeyProof
from ropewalk.ledger.proof.trust import Trust


def short(digest: bytes) -> str:
    """Return a digest shortened for display.

    >>> short(bytes(32))
    '0000000000000000…'
    """
    return f"{digest.hex()[:16]}…"


def describe_moment(text: str) -> str | None:
    """Return a readable time if the text is nanoseconds as in a block header; else None.

    >>> describe_moment("1794839847447472664"), describe_moment("yesterday")
    ('2026-11-16 14:37:27 UTC', None)
    """
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        return None
    return datetime.fromtimestamp(int(text) // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def compared(name: str, what: str, act: Callable[[], None]) -> Step:
    """Return a step that passes unless `act` raises; `what` describes the comparison in both cases.

    >>> compared("two", "1 and 2", lambda: None)
    Step(name='two', status='passed', detail='1 and 2', fields={}, need='required')
    """
    try:
        act()
    except RopewalkError as error:
        return Step(name, "failed", f"{error.detail} ({what})")
    return Step(name, "passed", what)


def signer_step(name: str, block: BlockRecord, trust: Trust, keys: Iterable[KeyProof] = ()) -> Step:
    """Check that a block is signed by a key of the trust file, or by a successor that `keys` prove."""
    signer, signers = block.signer, trust.block_signers
    key_history = KeyHistory(trust, lenient=True)
    try:
        key_history.follow(each for each in keys if each.record.header.channel == block.header.channel)
    except RopewalkError as error:
        return Step(name, "failed", error.detail)
    validity = key_history.validity(signer)
    if validity is None:
        return Step(name, "failed", f"block {block.height}: signer {signer.did()} is not trusted")
    if not validity.named and key_history.leads:
        return Step(
            name,
            "not_checked",
            f"{signer.did()} was replaced by a key that the trust file names, and is not named itself: whether "
            f"it was valid at block {block.height} cannot be checked",
        )
    if not validity.named:
        return Step(name, "failed", f"block {block.height}: signer {signer.did()} is not trusted")
    if signer in signers:
        what = f"{signer.did()}, one of {len(signers)} trusted to seal blocks"
    else:
        what = f"{signer.did()}, which {validity.explain()}: it replaced a key that is trusted to seal blocks"
    return compared(name, what, lambda: key_history.check(block))
