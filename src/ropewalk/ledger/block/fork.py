"""Forks: two signed blocks of one channel and height, stored and verified as evidence."""

from __future__ import annotations

from typing import Any

from ropewalk.errors import Invalid
from ropewalk.kernel import jcs
from ropewalk.kernel.report import Report, Step
from ropewalk.ledger.block.block import BlockRecord, Fork, check_signature, parse_record
from ropewalk.ledger.proof.steps import compared, short, signer_step
from ropewalk.ledger.proof.trust import Trust

FORK_BYTES_MAX = 1 << 20  # two block records; a header has at most 60,000 bytes


def parse_fork(raw: bytes) -> Fork:
    """Parse both sides of a fork from its document; only the form is checked.

    >>> parse_fork(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: fork: expected version, kind, height, ours and theirs
    """
    value: Any = jcs.parse(raw, bytes_max=FORK_BYTES_MAX)
    if not isinstance(value, dict) or value.keys() != {"version", "kind", "height", "ours", "theirs"}:
        raise Invalid("fork: expected version, kind, height, ours and theirs")
    if type(value["version"]) is not int or value["version"] != 1 or value["kind"] != "fork":
        raise Invalid("fork: unknown version or kind")
    fork = Fork(parse_record(jcs.encode(value["ours"])), parse_record(jcs.encode(value["theirs"])))
    if type(value["height"]) is not int or value["height"] != fork.ours.height:
        raise Invalid("fork: height must equal the height of both blocks")
    return fork


def verify_fork(fork: Fork, trust: Trust | None = None) -> Report:
    """Verify that a key signed two histories. The proof is valid if every step passes."""
    ours, theirs = fork.ours, fork.theirs
    steps = [
        _alike("same_place", _place(ours), _place(theirs)),
        Step(
            "two_blocks",
            "passed" if ours.hash != theirs.hash else "failed",
            f"{short(ours.hash)} and {short(theirs.hash)}",
        ),
        _sealed("first_signature", ours),
        _sealed("second_signature", theirs),
        _alike("same_signer", ours.signer.did(), theirs.signer.did()),
    ]
    if trust is None:
        steps.append(
            Step.untrusted(
                "signer", f"no trust file: sealed by {ours.signer.did()}, which is not known to be trusted"
            )
        )
    else:
        steps.append(signer_step("signer", ours, trust))
    return Report.of(steps, entries=2)


def _place(block: BlockRecord) -> str:
    return f"height {block.height} of {block.header.channel}"


def _alike(name: str, one: str, other: str) -> Step:
    return Step(name, "passed", one) if one == other else Step(name, "failed", f"{one}, and {other}")


def _sealed(name: str, block: BlockRecord) -> Step:
    said = f"block {short(block.hash)}, sealed by {block.signer.did()}"
    return compared(name, said, lambda: check_signature(block))
