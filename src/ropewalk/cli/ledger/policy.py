"""`ropewalk ledger policy`: show, check, hash and rotate policies."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from ropewalk.cli.common.command import emit, group, parse_input
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.options import channel_option, option, required
from ropewalk.cli.ledger.channel import channel_keys
from ropewalk.cli.ledger.key import WRITER_WAIT_S, check_fits, given_proposal, proposal_options, reason_option
from ropewalk.cli.ledger.proposal import write_proposal
from ropewalk.errors import NotFound
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.ledger.rules.policy import Policy

DENIED = 6


@group(
    "policy",
    "ropewalk ledger policy show > strict.json",
    "ropewalk ledger policy check --file envelope.json --policy strict.json",
)
def policy() -> None:
    """Show, check, hash and rotate policies."""


@policy.command("show", "ropewalk ledger policy show --channel audit")
@option("--channel", "C", "Use the policy of this channel (default: the built-in strict policy).")
def show(channel: str | None) -> None:
    """Print a policy bundle."""
    found = _policy(None, channel)
    raw = found.to_bytes().decode()
    emit({"policy": json.loads(raw), "policy_hash": found.hash.hex()}, raw)


@policy.command("hash", "ropewalk ledger policy hash --policy strict.json")
@option("--policy file", "F", "A policy bundle.")
@option("--channel", "C", "Use the policy of this channel (default: the built-in strict policy).")
def hash_(file: str | None, channel: str | None) -> None:
    """Print the hash of a policy, as block headers carry it."""
    found = _policy(file, channel)
    emit({"policy_hash": found.hash.hex(), "name": found.name}, found.hash.hex())


@policy.command(
    "rotate",
    "ropewalk ledger policy rotate --channel audit --policy strict.json --propose rotation.json",
    "ropewalk ledger policy rotate --channel audit --policy strict.json --proposal rotation.json \\",
    "    --approval ada.json --approval bob.json",
)
@channel_option
@required("--policy file", "F", "The new policy bundle.")
@reason_option
@proposal_options
def rotate(
    channel: str,
    file: str,
    reason: str,
    propose: str | None,
    proposal: str | None,
    approvals: tuple[str, ...],
) -> None:
    """Give a channel another policy, recorded as a block of it.

    Every control rule of the old policy must be satisfied by approvals. Earlier blocks are still judged by the policy
    they were made under.
    """
    from ropewalk.bridge.governance.guard import require_ungoverned
    from ropewalk.ledger.keys.failover import propose_policy, rotate_policy
    from ropewalk.ledger.rules.policy import parse_policy

    if propose is None:
        require_ungoverned(here(), "policy.rotate")
    home, new = here().home, parse_input(file, parse_policy)
    act, signed = given_proposal(proposal, approvals)
    act = act or propose_policy(home, channel, new, reason=reason)
    check_fits(act, "policy", channel)
    if propose is not None:
        write_proposal(propose, act.to_json())
        return
    receipt = rotate_policy(home, act, new, channel_keys(channel), approvals=signed, wait_s=WRITER_WAIT_S)
    emit(
        {"channel": channel, **receipt.to_json(), **act.to_json()},
        f"ok  {channel} {receipt.height}  policy {new.hash.hex()} from the next block on",
    )


@policy.command("check", "ropewalk ledger policy check --file envelope.json --channel audit")
@required("--file envelope", "F", "Envelope; `-` reads stdin.")
@option("--policy file", "F", "A policy bundle.")
@option("--channel", "C", "Use the policy of this channel (default: the built-in strict policy).")
def check(envelope: str, file: str | None, channel: str | None) -> None:
    """Check an envelope against a policy without appending it, and explain the decision. Exit 6 if denied."""
    from ropewalk.ledger.channel.guards import channel_evidence
    from ropewalk.ledger.channel.settings import FOLDER
    from ropewalk.ledger.envelope.envelope import parse_wire
    from ropewalk.ledger.rules.rules import judge
    from ropewalk.ledger.rules.verdict import Context
    from ropewalk.ledger.versions.lifecycle import open_minors

    found = _policy(file, channel)
    context = Context(policy=found)
    if channel is not None:
        home = here().home
        context = Context(
            policy=found,
            evidence=channel_evidence(home / FOLDER / channel),
            supported_minors=open_minors(home, found, time.time_ns()),
        )
    verdict = judge(parse_input(envelope, parse_wire), context)
    assert verdict.decision is not None
    answer = {**verdict.to_json(), "policy_hash": found.hash.hex(), "explanation": verdict.decision.explain()}
    lines = [verdict.decision.explain()]
    lines += [
        f"  rule {f.rule} {f.name}: {f.status}{f'  {f.detail}' if f.detail else ''}" for f in verdict.findings
    ]
    emit(answer, "\n".join(map(printable, lines)))
    if verdict.decision.outcome == "deny":
        raise click.exceptions.Exit(DENIED)
    verdict.require()


def _policy(file: str | None, channel: str | None) -> Policy:
    from ropewalk.ledger.channel.channel import current_policy
    from ropewalk.ledger.rules.policy import STRICT, parse_policy

    if file is not None:
        return parse_input(file, parse_policy)
    if channel is None:
        return STRICT
    found = current_policy(here().home, channel)
    if found is None:
        raise NotFound(
            f'channel "{channel}" has no policy', channel=channel, advice="Any valid signer may append."
        )
    return found
