"""`ropewalk simulate`: seeded worlds for your own reducers and policies."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ropewalk.cli.common.command import command, emit, parse_input, say, session
from ropewalk.cli.common.options import flag, integer, option
from ropewalk.errors import Invalid, Unverified
from ropewalk.kernel import jcs

if TYPE_CHECKING:
    from ropewalk.ledger.rules.policy import Policy
    from ropewalk.simulation import Decide


@command(
    "simulate",
    "ropewalk simulate --reducer mine:fold --events samples.jsonl",
    "ropewalk simulate --reducer mine:fold --policy policy.json --strange --worlds 1000",
    "ropewalk simulate --reducer mine:fold --seed 17",
)
@option(
    "--reducer name", "R", "Reducer: counts, registers, deployments, or module:function.", default="counts"
)
@option("--policy", "P", "Policy file, or module:function of an envelope (default: none).")
@option("--events", "F", 'Events to draw from, one {"type","payload"} per line (default: samples).')
@integer("--seed", "N", "First seed (default: 0). With --seed alone, one world runs.")
@integer("--worlds", "N", "Number of worlds (default: 100).", least=1)
@flag("--strange", "Also offer payloads with members missing or of another type; the policy may deny them.")
@flag("--any-order", "Require the same state for every order of the events.")
def simulate(
    name: str,
    policy: str | None,
    events: str | None,
    seed: int | None,
    worlds: int | None,
    strange: bool,
    any_order: bool,
) -> None:
    """Run appends, repeats, restarts, key rotations and replays drawn from seeds; compare all states and verdicts."""
    from ropewalk.simulation import SAMPLES, simulate

    sys.path.insert(0, str(Path.cwd()))  # as `python -m` would
    done = simulate(
        name,
        policy=None if policy is None else _policy(policy),
        events=SAMPLES if events is None else parse_input(events, _events),
        seed=seed or 0,
        worlds=worlds or (100 if seed is None else 1),
        strange=strange,
        any_order=any_order,
    )
    if done.problem is not None:
        if not session().json:
            for line in done.story:
                say(line)
        raise Unverified(
            f"seed {done.failed_seed}: {done.problem}",
            **asdict(done),
            advice=f"Run it again with --seed {done.failed_seed}.",
        )
    emit(asdict(done), f"ok  {done.worlds} worlds, {done.events} events, {done.denied} denied")


def _policy(name: str) -> Policy | Decide:
    """Return the policy of a file, or a function."""
    from ropewalk.ledger.replay.reducers import find_reducer
    from ropewalk.ledger.rules.policy import parse_policy

    if ":" in name and not Path(name).exists():
        return cast("Decide", find_reducer(name).fold)
    return parse_input(name, parse_policy)


def _events(raw: bytes) -> list[dict[str, Any]]:
    events = [jcs.parse(line) for line in raw.splitlines() if line.strip()]
    for number, event in enumerate(events, 1):
        if not isinstance(event, dict) or not isinstance(event.get("type"), str) or "payload" not in event:
            raise Invalid(f'line {number} must be an object with "type" and "payload"')
    if not events:
        raise Invalid("events must have at least one line")
    return events  # type: ignore[return-value]
