"""`ropewalk ledger status` and `ledger reindex`: show the state of channels, and rebuild their index."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ropewalk.cli.common.command import command, emit, say
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.options import option
from ropewalk.cli.ledger.lifecycle import notice_line, version_rows
from ropewalk.errors import RopewalkError
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from pathlib import Path


@command("status", "ropewalk ledger status", "ropewalk ledger status --json")
@option("--channel", "C", "Show only this channel.")
def status(channel: str | None) -> None:
    """Show the state of every channel: head, accepted versions, policy, evidence and warnings.

    Nothing is verified; `ledger verify --deep` does that.
    """
    from ropewalk.ledger.channel.settings import channels, read_settings
    from ropewalk.ledger.versions.lifecycle import notices, read_lifecycle

    home, now = here().home, time.time_ns()
    if channel is not None and channel not in channels(home):
        read_settings(home, channel)  # raises the error
    found = [_look(home, each, now) for each in ([channel] if channel is not None else channels(home))]
    due = notices(home, now)
    warnings = [notice_line(notice) for notice in due]
    warnings += [f"{each['channel']}: {text}" for each in found for text in each["warnings"]]
    for text in warnings:
        say(f"warning  {text}")
    emit(
        {
            "channels": found,
            "versions": version_rows(read_lifecycle(home), now),
            "notices": due,
            "warnings": warnings,
        },
        map(_key_history, found),
        "no channels yet",
    )


def _look(home: Path, channel: str, now_ns: int) -> dict[str, Any]:
    from ropewalk.ledger.channel.channel import open_channel
    from ropewalk.ledger.evidence.settings import read_evidence
    from ropewalk.ledger.keys.rotate import key_notices
    from ropewalk.ledger.versions.lifecycle import open_minors

    out: dict[str, Any] = {"channel": channel, "warnings": []}
    try:
        with open_channel(home, channel) as reading:
            policy, head = reading.policy, reading.head()
            out |= {
                "height": None if head.height == 0 else head.height - 1,
                "envelopes": head.envelopes,
                "last_block_ns": str(head.timestamp_ns) if head.height else None,
                "signer": reading.key_history().current.key.did(),
                "policy_hash": None if policy is None else policy.hash.hex(),
                "versions": [f"{minor}.x" for minor in sorted(open_minors(home, policy, now_ns))],
                "judges_evidence": read_evidence(home, channel) is not None,
                "tiers": reading.segments.tiers(head.height),
            }
            forks = sorted(path.name for path in (reading.folder / "evidence").glob("fork-*.json"))
            torn = sorted(path.name for path in (reading.folder / "torn").glob("*"))
            if forks:
                out["warnings"].append(
                    f"{len(forks)} forks were detected; both sides are in {reading.folder / 'evidence'}"
                )
            if torn:
                out["warnings"].append(
                    f"{len(torn)} incomplete blocks were removed after crashes; kept in {reading.folder / 'torn'}"
                )
            out["warnings"] += key_notices(reading, now_ns)
            if not out["versions"]:
                out["warnings"].append("no version is accepted: nothing can be appended")
    except RopewalkError as error:
        out["warnings"].append(f"{error.code}: {error.detail}")
    return out


def _key_history(found: dict[str, Any]) -> str:
    if "signer" not in found:
        return f"{found['channel']}  cannot be read"
    where = "empty" if found["height"] is None else f"height={found['height']} envelopes={found['envelopes']}"
    policy = "any signer" if found["policy_hash"] is None else f"policy {found['policy_hash'][:16]}…"
    tiers = [
        f"{name} {each['blocks']} blocks{' in ' + ', '.join(each['locations']) if name == 'cold' else ''}"
        for name, each in found["tiers"].items()
    ]
    evidence = "evidence judged" if found["judges_evidence"] else "evidence bound, not judged"
    words = [found["channel"], where, policy, ", ".join(found["versions"]) or "no version", evidence]
    return printable("  ".join(words + (tiers if set(found["tiers"]) - {"hot"} else [])))


@command("reindex", "ropewalk ledger reindex --channel audit")
@option("--channel", "C", "Channel (default: all).")
def reindex(channel: str | None) -> None:
    """Rebuild the index of a channel from its log. Stop all writers of the channel first."""
    from ropewalk.ledger.channel.maintenance import rebuild_index
    from ropewalk.ledger.channel.settings import channels

    home = here().home
    done = {
        each: rebuild_index(home, each) for each in ([channel] if channel is not None else channels(home))
    }
    emit(
        {"channels": [{"channel": name, "blocks": blocks} for name, blocks in done.items()]},
        (f"ok  {name}  {blocks} blocks" for name, blocks in done.items()),
        "no channels yet",
    )
