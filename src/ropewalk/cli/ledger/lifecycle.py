"""`ropewalk ledger lifecycle`: which versions of envelopes are let in, and notice before that ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import click

from ropewalk.cli.common.command import Group, emit, say
from ropewalk.cli.common.locations import here
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
    """Which versions of envelopes this repository takes in, and until when."""


@lifecycle.command("show", epilog="Examples:\n  ropewalk ledger lifecycle show --json\n")
def show() -> None:
    """Print every version with its stage, its sunset, and what it may do now."""
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
@click.option(
    "--sunset", metavar="TIME", help="RFC 3339 in UTC: after it nothing new of this version is let in."
)
@click.option(
    "--grace-days", type=click.IntRange(0), metavar="N", help="How long it is still read after that."
)
@click.option("--channel", metavar="C", help="Record the change in this channel, with who approved.")
@click.option(
    "--propose", metavar="F", help="Write the change to a file, for others to approve; nothing is done."
)
@click.option(
    "--approval", "approvals", multiple=True, metavar="F", help="An approval of it; may be given again."
)
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

    A life goes only forward: preview, active, maintenance, deprecated, disabled. A preview is let in only where the
    channel's policy names it in capability_matrix.versions. What stands in the ledger stays readable and provable.

    With --channel the change is recorded there. Where a policy demands that several people sign it off (a `control`
    rule with the act `version`), --propose writes it, `ledger key approve` signs it, and --approval takes it along.
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
@click.option("--channel", required=True, metavar="C", help="The channel that takes the alerts.")
def notify(channel: str) -> None:
    """Seal an Alert for every version that is 30, 14 or 7 days before its sunset. Said once: run it daily."""
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
                f"{'stood there already' if each['replayed'] else 'ok'}  {notice_line(each)}" for each in sent
            )
            or "ok  no version is near its sunset"
        ),
    )


def version_rows(table: tuple[Lifecycle, ...], now_ns: int) -> list[dict[str, Any]]:
    """Versions with what each may do now, and why."""
    from ropewalk.ledger.versions.versions import access

    rows = []
    for life in table:
        allowed, why = access(life.minor, now_ns, table)
        rows.append({**life.to_json(), "access": allowed, "why": why})
    return rows


def notice_line(notice: dict[str, Any]) -> str:
    """One line for people."""
    return (
        f"version {notice['version']} has its sunset at {notice['sunset']}, within {notice['days']} days: "
        "nothing new of it is let in after that"
    )
