"""Forks: two sealed blocks of one channel and height. Kept as evidence, and checked by whoever is shown it."""

from __future__ import annotations

from typing import Any

from ropewalk.errors import Invalid, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.report import Report, Step
from ropewalk.ledger.block import Fork, check_signature, parse_record
from ropewalk.ledger.trust import Trust

__all__ = ["parse_fork", "verify_fork"]


def parse_fork(raw: bytes) -> Fork:
    """Both sides of a fork from the document that keeps them; form only.

    >>> parse_fork(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: fork: expected version, kind, height, ours and theirs
    """
    value: Any = jcs.parse(raw)
    if not isinstance(value, dict) or value.keys() != {"version", "kind", "height", "ours", "theirs"}:
        raise Invalid("fork: expected version, kind, height, ours and theirs")
    if type(value["version"]) is not int or value["version"] != 1 or value["kind"] != "fork":
        raise Invalid("fork: of a version or kind that is not known")
    fork = Fork(parse_record(jcs.encode(value["ours"])), parse_record(jcs.encode(value["theirs"])))
    if type(value["height"]) is not int or value["height"] != fork.ours.height:
        raise Invalid("fork: height is not that of its blocks")
    return fork


def verify_fork(fork: Fork, trust: Trust | None = None) -> Report:
    """Whether this proves that somebody sealed two histories. It holds if every step does."""
    ours, theirs = fork.ours, fork.theirs
    steps = [
        _step("same_place", ours.header.channel == theirs.header.channel and ours.height == theirs.height),
        _step("two_blocks", ours.hash != theirs.hash),
        _sealed("first_signature", fork, first=True),
        _sealed("second_signature", fork, first=False),
        _step("same_signer", ours.signer == theirs.signer),
    ]
    if trust is None:
        steps.append(
            Step("signer", "not_checked", f"no trust file: sealed by {ours.signer.did()}, whoever that is")
        )
    else:
        steps.append(_step("signer", ours.signer in trust.block_signers))
    return Report.of(steps, entries=2)


def _step(name: str, holds: bool) -> Step:
    return Step(name, "passed" if holds else "failed")


def _sealed(name: str, fork: Fork, *, first: bool) -> Step:
    try:
        check_signature(fork.ours if first else fork.theirs)
    except RopewalkError as error:
        return Step(name, "failed", error.detail)
    return Step(name, "passed")
