"""`ropewalk ledger lifecycle`: which versions of envelopes are accepted, and notices before a sunset."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import click

from ropewalk.cli.common.command import Group, emit, say
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.options import option, repeated, required
from ropewalk.cli.ledger.channel import channel_key, channel_keys, open_sealing, read_approvals
from ropewalk.cli.ledger.proposal import write_proposal

if TYPE_CHECKING:
    from ropewalk.ledger.versions.versions import Lifecycle, Stage

STAGES = ("preview", "active", "maintenance", "deprecated", "disabled")


@click.group(
    "lifecycle",
    cls=Group,
    epilog="Examples:\n  ropewalk ledger lifecycle show\n"
    "  ropewalk ledger lifecycle set 1.0.x deprecated --sunset 2027-01-01T00:00:00Z\n"
    "  ropewalk ledger lifecycle notify --channel ops\n",
)
def lifecycle() -> None:
    """Show and change which versions of envelopes this repository accepts, and until when."""


@lifecycle.command("show", epilog="Examples:\n  ropewalk ledger lifecycle show --json\n")
def show() -> None:
    """Print every version with its stage, sunset and current access."""
    from ropewalk.ledger.versions.lifecycle import notices, read_lifecycle

    home, now = here().home, time.time_ns()
    rows, due = version_rows(read_lifecycle(home), now), notices(home, now)
    for notice in due:
        say(notice_line(notice))
    emit(
        {"versions": rows, "notices": due},
        lambda: "\n".join(
            f"{row['version']}  {row['stage']:12}{row['access']:7}"
            f"{'sunset ' + row['sunset'] if row['sunset'] else ''}".rstrip()
            for row in rows
        ),
    )


@lifecycle.command(
    "set",
    epilog="Examples:\n  ropewalk ledger lifecycle set 1.0.x maintenance\n"
    "  ropewalk ledger lifecycle set 1.0.x deprecated --sunset 2027-01-01T00:00:00Z --grace-days 90\n",
)
@click.argument("version")
@click.argument("stage", type=click.Choice(STAGES))
@option("--sunset", "TIME", "Time in RFC 3339, UTC, from which new envelopes of this version are rejected.")
@option(
    "--grace-days",
    "N",
    "Days after the sunset in which the version can still be read.",
    type=click.IntRange(0),
)
@option("--channel", "C", "Record the change in this channel, with who approved.")
@option("--propose", "F", "Write the change to a file, for others to approve; nothing is done.")
@repeated("--approval approvals", "F", "Approval of the proposal; repeatable.")
def set_(
    version: str,
    stage: str,
    sunset: str | None,
    grace_days: int | None,
    channel: str | None,
    propose: str | None,
    approvals: tuple[str, ...],
) -> None:
    """Move a version (as 1.0.x) to its next stage, or change the dates of the one it is in.

    Stages only go forward: preview, active, maintenance, deprecated, disabled. A preview is accepted only if the
    channel's policy names it in capability_matrix.versions. Existing envelopes stay readable and provable.

    With --channel the change is recorded there. If the policy requires approvals (a `control` rule with the act
    `version`), write the proposal with --propose, sign it with `ledger key approve`, and add --approval.
    """
    from ropewalk.ledger.versions.change import change_version, require_no_approvals
    from ropewalk.ledger.versions.lifecycle import move_version
    from ropewalk.ledger.versions.statements import VersionAct

    home, where = here().home, ""
    if channel is None:
        if propose is not None or approvals:
            raise click.UsageError(
                "approvals belong to a change that a channel records: name it with --channel"
            )
        require_no_approvals(home)
        moved = move_version(home, version, cast("Stage", stage), sunset=sunset, grace_days=grace_days)
    else:
        act = VersionAct(channel, version, cast("Stage", stage), sunset, grace_days)
        if propose is not None:
            write_proposal(propose, act.to_json())
            return
        signed = read_approvals(approvals, act.to_json())
        moved, height = change_version(home, act, channel_keys(channel), signed, wait_s=30.0)
        where = f", recorded in {channel} at height {height}"
    until = f" until {moved.sunset}" if moved.sunset is not None else ""
    emit(moved.to_json(), f"ok  {version}  {moved.stage}{until}{where}")


@lifecycle.command("notify", epilog="Examples:\n  ropewalk ledger lifecycle notify --channel ops\n")
@required("--channel", "C", "The channel that takes the alerts.")
def notify(channel: str) -> None:
    """Append an Alert for every version 30, 14 or 7 days before its sunset, once each. Run it daily."""
    from ropewalk.ledger.channel.settings import read_settings
    from ropewalk.ledger.versions.lifecycle import notices, send_notices, version_to_write

    home, now = here().home, time.time_ns()
    settings, due = read_settings(home, channel), notices(home, now)
    sent: list[dict[str, Any]] = []
    if due:
        key = channel_key(channel)
        with open_sealing(channel) as opened:
            version = version_to_write(home, settings.policy, now)
            for notice, receipt in send_notices(opened.log, key, due, now, protocol_version=version):
                sent.append(
                    {**notice, "envelope_id": None, "replayed": True}
                    if receipt is None
                    else {**notice, **receipt.to_json()}
                )
    emit(
        {"channel": channel, "notices": sent},
        lambda: (
            "\n".join(
                f"{'recorded before' if each['replayed'] else 'ok'}  {notice_line(each)}" for each in sent
            )
            or "ok  no version is near its sunset"
        ),
    )


def version_rows(table: tuple[Lifecycle, ...], now_ns: int) -> list[dict[str, Any]]:
    """Return the versions with their current access and the reason."""
    from ropewalk.ledger.versions.versions import access

    rows = []
    for life in table:
        allowed, why = access(life.minor, now_ns, table)
        rows.append({**life.to_json(), "access": allowed, "why": why})
    return rows


def notice_line(notice: dict[str, Any]) -> str:
    """Return a notice as a line for people."""
    return (
        f"version {notice['version']} has its sunset at {notice['sunset']}, within {notice['days']} days: "
        "new envelopes of it are rejected after that"
    )
