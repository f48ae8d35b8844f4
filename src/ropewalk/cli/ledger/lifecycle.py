"""`ropewalk ledger lifecycle`: which versions of envelopes are accepted, rehearsals, and notices before a sunset."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click

from ropewalk.cli.common.command import emit, group, progress, read_input, say, write_output
from ropewalk.cli.common.locations import NODE_KEY, here, signing_key
from ropewalk.cli.common.options import flag, integer, option, repeated, required
from ropewalk.cli.ledger.channel import (
    channel_key,
    channel_keys,
    now_text,
    only_channel,
    open_sealing,
    read_approvals,
)
from ropewalk.cli.ledger.proposal import write_proposal
from ropewalk.cli.ledger.storage.replay import named_reducer
from ropewalk.errors import Unverified
from ropewalk.kernel.digest import blake3

if TYPE_CHECKING:
    from ropewalk.ledger.versions.statements import ShippedDocuments
    from ropewalk.ledger.versions.versions import Lifecycle, Stage

STAGES = ("preview", "active", "maintenance", "deprecated", "disabled")


@group(
    "lifecycle",
    "ropewalk ledger lifecycle show",
    "ropewalk ledger lifecycle rehearse 1.1.x --channel ops",
    "ropewalk ledger lifecycle set 1.0.x deprecated --sunset 2027-01-01T00:00:00Z",
    "ropewalk ledger lifecycle notify --channel ops",
)
def lifecycle() -> None:
    """Show and change which versions of envelopes this repository accepts, and until when."""


@lifecycle.command("show", "ropewalk ledger lifecycle show --json")
def show() -> None:
    """Print every version with its stage, sunset and current access."""
    from ropewalk.ledger.versions.lifecycle import notices, read_lifecycle

    home, now = here().home, time.time_ns()
    rows, due = version_rows(read_lifecycle(home), now), notices(home, now)
    for notice in due:
        say(notice_line(notice))
    lines = []
    for row in rows:
        sunset = f"sunset {row['sunset']}" if row["sunset"] else ""
        lines.append(f"{row['version']}  {row['stage']:12}{row['access']:7}{sunset}".rstrip())
    emit({"versions": rows, "notices": due}, lines)


@lifecycle.command(
    "set",
    "ropewalk ledger lifecycle set 1.0.x maintenance",
    "ropewalk ledger lifecycle set 1.0.x deprecated --sunset 2027-01-01T00:00:00Z --grace-days 90",
    "ropewalk ledger lifecycle set 1.1.x active --channel ops --guide migration.md",
)
@click.argument("version")
@click.argument("stage", type=click.Choice(STAGES))
@option("--sunset", "TIME", "Time in RFC 3339, UTC, from which new envelopes of this version are rejected.")
@integer("--grace-days", "N", "Days after the sunset in which the version can still be read.")
@option("--channel", "C", "Record the change in this channel, with who approved.")
@option("--guide", "F", "Migration guide; its digest is recorded. Needed with --channel.")
@option("--transcript", "ID", "Envelope id of the rehearsal to record (default: the newest in the channel).")
@option("--reducer", "R", "Reducer of the rehearsals, if it is not built in: module:function.")
@option("--propose", "F", "Write the change to a file, for others to approve; nothing is done.")
@repeated("--approval approvals", "F", "Approval of the proposal; repeatable.")
def set_(
    version: str,
    stage: str,
    sunset: str | None,
    grace_days: int | None,
    channel: str | None,
    guide: str | None,
    transcript: str | None,
    reducer: str | None,
    propose: str | None,
    approvals: tuple[str, ...],
) -> None:
    """Move a version (as 1.0.x) to its next stage, or change the dates of the one it is in.

    Stages only go forward: preview, active, maintenance, deprecated, disabled. A preview is accepted only if the
    channel's policy names it in capability_matrix.versions. Existing envelopes stay readable and provable.

    With --channel the change is recorded there, with the digests of the migration guide, of a rehearsal that the
    channel holds (`lifecycle rehearse`) and of all policies. A rehearsal is computed again before it counts. A policy
    with a `rehearsal` rule accepts a version only after its followers have rehearsed it.

    If the policy requires approvals (a `control` rule with the act `version`), write the proposal with --propose, sign
    it with `ledger key approve`, and add --approval.
    """
    from ropewalk.bridge.governance.guard import require_ungoverned
    from ropewalk.ledger.versions.change import change_version, require_no_approvals
    from ropewalk.ledger.versions.lifecycle import move_version
    from ropewalk.ledger.versions.statements import VersionAct

    home, where = here().home, ""
    if propose is None:
        require_ungoverned(here(), "lifecycle.change")
    if channel is None:
        if propose is not None or approvals or guide is not None or transcript is not None:
            raise click.UsageError(
                "approvals and documents belong to a change that a channel records: name it with --channel"
            )
        require_no_approvals(home)
        moved = move_version(home, version, cast("Stage", stage), sunset=sunset, grace_days=grace_days)
    else:
        documents = _documents(channel, version, guide, transcript)
        act = VersionAct(channel, version, cast("Stage", stage), sunset, grace_days, documents)
        if propose is not None:
            write_proposal(propose, act.to_json())
            return
        signed = read_approvals(approvals, act.to_json())
        own = named_reducer(reducer) if reducer is not None else None
        moved, height = change_version(home, act, channel_keys(channel), signed, reducer=own, wait_s=30.0)
        where = f", recorded in {channel} at height {height}"
    until = f" until {moved.sunset}" if moved.sunset is not None else ""
    emit(moved.to_json(), f"ok  {version}  {moved.stage}{until}{where}")


def _documents(channel: str, version: str, guide: str | None, transcript: str | None) -> ShippedDocuments:
    from ropewalk.ledger.versions.rehearse import newest_transcript, policy_hashes
    from ropewalk.ledger.versions.statements import ShippedDocuments

    if guide is None:
        raise click.UsageError(
            "a change that a channel records ships a migration guide: name it with --guide"
        )
    home = here().home
    return ShippedDocuments(
        blake3(read_input(guide)).hex(),
        transcript or newest_transcript(home, channel, version),
        policy_hashes(home),
    )


@lifecycle.command(
    "rehearse",
    "ropewalk ledger lifecycle rehearse 1.1.x --channel ops",
    "ropewalk ledger lifecycle rehearse 1.0.x --downgrade --channel ops --reducer deployments",
    "ropewalk ledger lifecycle rehearse 1.1.x --channel ops -o rehearsal.json",
    "ropewalk ledger append --channel ops --file rehearsal.json",
)
@click.argument("version")
@flag("--downgrade", "Rehearse the way back: from the newest version to VERSION.")
@option("--channel", "C", "Channel to replay (default: the only one).")
@option("--reducer", "R", "Reducer that folds the state, or module:function.", default="counts")
@option("--key", "NAME", "Key that signs (default: the channel's key; with -o, the key node).")
@option("-o --output", "F", "Write the signed envelope to a file instead of appending it.")
def rehearse(
    version: str, downgrade: bool, channel: str | None, reducer: str, key: str | None, output: str | None
) -> None:
    """Replay a channel with the adapters of two versions, compare the states, and seal both roots.

    The versions are VERSION and the newest older one in use. If the states differ, nothing is sealed (exit 5).
    A follower has a copy of the channel and seals nothing in it: it signs the rehearsal with its own key, and the
    primary appends the file.
    """
    from ropewalk.ledger.channel.channel import current_policy
    from ropewalk.ledger.versions.lifecycle import version_to_write
    from ropewalk.ledger.versions.rehearsal import rehearsal_envelope
    from ropewalk.ledger.versions.rehearse import rehearse as run
    from ropewalk.ledger.versions.rehearse import versions_for

    home, channel = here().home, only_channel(channel)
    policy = current_policy(home, channel)
    source, target = versions_for(home, version, downgrade=downgrade)
    signer = signing_key(key or NODE_KEY) if key or output else channel_key(channel)
    done = run(home, channel, source, target, named_reducer(reducer), watch=partial(progress, label=channel))
    fault = done.fault()
    if fault is not None:
        raise Unverified(
            fault, **done.to_json(), advice="Adapt the reducer or the version; nothing was sealed."
        )
    made = rehearsal_envelope(done, signer, now_text(), version_to_write(home, policy, time.time_ns()))
    answer: dict[str, Any] = {**done.to_json(), "envelope_id": made.hex_id}
    if output is not None:
        write_output(output, made.raw + (b"\n" if output == "-" else b""))
        answer["path"] = output
    else:
        with open_sealing(channel) as opened:
            answer["height"] = opened.log.submit(made.raw).height
    if output == "-":
        return
    root = done.snapshots[-1][1].hex()
    where = output if output is not None else f"sealed in {channel} at height {answer['height']}"
    emit(answer, f"ok  {source} → {target}  blocks={done.blocks} state_root={root} on both  {where}")


@lifecycle.command("notify", "ropewalk ledger lifecycle notify --channel ops")
@required("--channel", "C", "The channel that takes the alerts.")
def notify(channel: str) -> None:
    """Append an Alert for every version 30, 14 or 7 days before its sunset, once each. Run it daily."""
    from ropewalk.ledger.versions.lifecycle import notices, send_notices, version_to_write

    home, now = here().home, time.time_ns()
    due = notices(home, now)
    sent: list[dict[str, Any]] = []
    if due:
        key = channel_key(channel)
        with open_sealing(channel) as opened:
            version = version_to_write(home, opened.log.policy, now)
            for notice, receipt in send_notices(opened.log, key, due, now, protocol_version=version):
                sent.append(
                    {**notice, "envelope_id": None, "replayed": True}
                    if receipt is None
                    else {**notice, **receipt.to_json()}
                )
    lines = (f"{'recorded before' if each['replayed'] else 'ok'}  {notice_line(each)}" for each in sent)
    emit({"channel": channel, "notices": sent}, lines, "ok  no version is near its sunset")


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
