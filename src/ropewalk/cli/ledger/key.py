"""`ropewalk ledger key`: rotate, retire, revoke and destroy the signing keys of a channel."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import command, emit, group, parse_input, say, write_result
from ropewalk.cli.common.locations import here, key_folder, key_folders, signing_key
from ropewalk.cli.common.options import channel_option, decimal, option, repeated, required, together
from ropewalk.cli.ledger.channel import channel_keys, read_approvals, read_channel
from ropewalk.cli.ledger.proposal import describe_proposal, named_keys, write_proposal
from ropewalk.errors import Conflict, Invalid, NotFound
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.terminal_text import printable
from ropewalk.ledger.envelope.fields import parse_timestamp

if TYPE_CHECKING:
    from ropewalk.kernel.keys import SigningKey
    from ropewalk.ledger.keys.approvals import Approval
    from ropewalk.ledger.keys.statements import Act, KeyAct

WRITER_WAIT_S = 30.0

proposal_options: Callable[[Any], Any] = together(
    option("--propose", "F", "Write a proposal to this file for approval, and change nothing."),
    option("--proposal", "F", "Carry out this approved proposal."),
    repeated("--approval approvals", "F", "Approval of the proposal; repeatable."),
)
since_option = option("--since", "TIME", "Effective time in RFC 3339, UTC (default: now).")
reason_option = option("--reason", "TEXT", "Reason to record.", default="")


@group(
    "key",
    "ropewalk ledger key ls --channel audit",
    "ropewalk ledger key rotate --channel audit --to node-2027 --overlap-days 30",
    "ropewalk ledger key approve rotation.json --key ada -o ada.json",
)
def key() -> None:
    """List, rotate, retire, revoke and destroy the signing keys of a channel.

    Each change is an envelope in the channel, signed by its current key. If the policy requires approvals, write a
    proposal with --propose, sign it with `key approve`, and carry it out with --proposal and --approval.
    """


@key.command("ls", "ropewalk ledger key ls --channel audit --json")
@channel_option
def ls(channel: str) -> None:
    """List the keys of a channel with their validity, and other keys that the channel revokes."""
    from ropewalk.ledger.keys.rotate import key_lifetimes, key_notices, key_rows, revoked_rows

    now = time.time_ns()
    with read_channel(channel) as reading:
        rows, warnings = key_rows(reading, now), key_notices(reading, now)
        revoked = revoked_rows(reading)
        ends = [each.to_json() for each in key_lifetimes(reading, now)]
    for text in warnings:
        say(f"warning  {text}")
    emit(
        {"channel": channel, "keys": rows, "revoked": revoked, "lifetimes": ends, "warnings": warnings},
        lambda: _table(rows, revoked, channel),
    )


@key.command("show", "ropewalk ledger key show --channel audit")
@channel_option
def show(channel: str) -> None:
    """Show the key changes of a channel in order, and who approved them."""
    from ropewalk.ledger.keys.statements import parse_key_statement

    acts: list[dict[str, Any]] = []
    with read_channel(channel) as reading:
        reading.key_history()  # raises if a key change is not valid
        for each in reading.key_proofs():
            said = parse_key_statement(each.envelope)
            acts.append(
                {
                    "height": each.record.height,
                    "envelope_id": each.envelope.hex_id,
                    **said.act.to_json(),
                    "approved_by": [one.approver.did() for one in said.approvals],
                }
            )
    emit({"channel": channel, "acts": acts}, map(_act_line, acts), "no key changes")


@key.command(
    "rotate",
    "ropewalk ledger key rotate --channel audit --to node-2027",
    "ropewalk ledger key rotate --channel audit --to node-2027 --overlap-days 30 --propose rotation.json",
    "ropewalk ledger key rotate --channel audit --to node-2027 --proposal rotation.json \\",
    "    --approval ada.json --approval bob.json",
)
@channel_option
@required("--to", "NAME", "New key; create it with `ropewalk key new`.")
@since_option
@decimal(
    "--overlap-days",
    "N",
    "Days in which the old key stays valid next to the new one.",
    most=36_525,
    default=0.0,
)
@proposal_options
def rotate(
    channel: str,
    to: str,
    since: str | None,
    overlap_days: float,
    propose: str | None,
    proposal: str | None,
    approvals: tuple[str, ...],
) -> None:
    """Replace the channel's signing key with NAME.

    Both keys sign the change. Later blocks are signed by the new key; earlier blocks stay valid. A verifier that trusts
    the first key can verify all blocks.
    """
    from ropewalk.bridge.governance.guard import require_ungoverned
    from ropewalk.ledger.keys.rotate import execute_act, propose_rotation

    if propose is None:
        require_ungoverned(here(), "key.rotate")
    home, new = here().home, signing_key(to)
    with read_channel(channel) as reading:
        if reading.key_history().current.key == new.public:
            _follow(channel, (*channel_keys(channel), new))  # finish a rotation that was interrupted
            raise Conflict(
                f'key "{to}" is already the signing key of channel {channel}',
                channel=channel,
                advice="Create another key with `ropewalk key new`, and name it with --to.",
            )
    act, signed = given_proposal(proposal, approvals)
    if act is None:
        act = propose_rotation(home, channel, new.public, since_ns=_time(since), overlap_days=overlap_days)
    check_fits(act, "rotate", channel)
    if propose is not None:
        write_proposal(propose, act.to_json())
        return
    keys = (*channel_keys(channel), new)
    receipt = execute_act(home, act, keys, approvals=signed, wait_s=WRITER_WAIT_S)
    _follow(channel, keys)
    emit(
        {"channel": channel, **receipt.to_json(), **act.to_json()},
        f"ok  {channel} {receipt.height}  sealed by {new.public.did()} since {act.since}; the old key counts until "
        f"{act.until}",
    )


def _other(act: Act, name: str, doc: str, example: str) -> None:
    """Add a command for an act that ends a key."""

    @key.command(name, example, help=doc)
    @channel_option
    @click.argument("which", metavar="KEY")
    @since_option
    @reason_option
    @proposal_options
    def end(
        channel: str,
        which: str,
        since: str | None,
        reason: str,
        propose: str | None,
        proposal: str | None,
        approvals: tuple[str, ...],
    ) -> None:
        from ropewalk.ledger.keys.rotate import destroy_key, execute_act
        from ropewalk.ledger.keys.rotate import propose as make

        home = here().home
        fingerprint = _fingerprint(which)
        todo, signed = given_proposal(proposal, approvals)
        todo = todo or make(channel, act, fingerprint, since_ns=_time(since), reason=reason)
        check_fits(todo, act, channel, fingerprint)
        if propose is not None:
            write_proposal(propose, todo.to_json())
            return
        keys = channel_keys(channel)
        if act == "destroy":
            folder = key_folders(which)
            receipt = destroy_key(home, todo, keys, folder, which, approvals=signed, wait_s=WRITER_WAIT_S)
        else:
            receipt = execute_act(home, todo, keys, approvals=signed, wait_s=WRITER_WAIT_S)
        emit(
            {"channel": channel, **receipt.to_json(), **todo.to_json()},
            f"ok  {channel} {receipt.height}  {act} {todo.key.hex()[:16]}… since {todo.since}",
        )


@command(
    "promote",
    "ropewalk ledger promote --channel audit --to node --propose promotion.json",
    "ropewalk ledger promote --channel audit --to node --proposal promotion.json \\",
    "    --approval ada.json --approval bob.json",
)
@channel_option
@required("--to", "NAME", "Key that seals from now on; `node` is that of this repository.")
@reason_option
@proposal_options
def promote(
    channel: str, to: str, reason: str, propose: str | None, proposal: str | None, approvals: tuple[str, ...]
) -> None:
    """Make this verified copy of a channel its writer, under a new epoch.

    For the case that the writer is lost. The policy names who must approve; the promotion is a block of the channel,
    and verifiers that trust the old key accept it. A writer that comes back is fenced when it pulls from here.
    """
    from ropewalk.ledger.keys.failover import promote as carry_out
    from ropewalk.ledger.keys.failover import propose_promotion

    home, new = here().home, signing_key(to)
    act, signed = given_proposal(proposal, approvals)
    act = act or propose_promotion(home, channel, new.public, reason=reason)
    check_fits(act, "promote", channel)
    if propose is not None:
        write_proposal(propose, act.to_json())
        return
    receipt = carry_out(home, act, new, approvals=signed, wait_s=WRITER_WAIT_S)
    emit(
        {"channel": channel, **receipt.to_json(), **act.to_json()},
        f"ok  {channel} {receipt.height}  epoch {act.epoch}, sealed by {new.public.did()}",
    )


_other(
    "retire",
    "retire",
    "Retire a replaced key before its overlap is over. KEY is a name, a did:key or a fingerprint.",
    "ropewalk ledger key retire --channel audit node",
)
_other(
    "revoke",
    "revoke",
    "Revoke KEY from a date on: a name, a did:key or a fingerprint of any key.\n\n"
    "Later blocks signed by KEY are rejected; earlier blocks stay valid. Rotate an active channel key first.",
    "ropewalk ledger key revoke --channel audit did:key:z6Mk... --reason stolen",
)
_other(
    "destroy",
    "destroy",
    "Destroy the replaced key NAME permanently, and record that.",
    "ropewalk ledger key destroy --channel audit node-2026",
)


@key.command("approve", "ropewalk ledger key approve rotation.json --key ada -o ada.json")
@click.argument("proposal")
@required("--key name", "NAME", "Approver's key; the policy must name it.")
@option("-o --output", "F", "Output file (default: stdout).", default="-")
def approve_(proposal: str, name: str, output: str) -> None:
    """Approve the change in the file PROPOSAL by signing it."""
    from ropewalk.ledger.keys.approvals import approve

    value = parse_input(proposal, _parse_proposal)
    say(f"approving: {describe_proposal(value)}")
    if value["act"] == "promote":
        _vote(value, name)
    made = approve(value, signing_key(name))
    answer = {"path": output, "approver": made.approver.did(), "act": value}
    write_result(output, made.to_bytes(value), answer, f"ok  {output}")


# --- inside ---


def _follow(channel: str, keys: tuple[SigningKey, ...]) -> None:
    """Rotate the key of the snapshot channel, too."""
    from ropewalk.ledger.keys.rotate import follow_with_snapshots

    if follow_with_snapshots(here().home, channel, keys, wait_s=WRITER_WAIT_S) is not None:
        say("the snapshot channel was rotated, too")


def _vote(value: dict[str, Any], name: str) -> None:
    """Refuse to approve two promotions of one epoch, or one that leaves out blocks which are here."""
    from ropewalk.ledger.keys.failover import check_not_behind, vote
    from ropewalk.ledger.keys.statements import parse_act

    act = parse_act(value)
    with suppress(NotFound):  # approving needs neither a repository nor a copy
        check_not_behind(here().home, act)
    vote(key_folder().parent / "promotions", act, signing_key(name).public)


def _parse_proposal(raw: bytes) -> dict[str, Any]:
    """Parse a proposal about a key or a version."""
    from ropewalk.ledger.keys.statements import parse_act
    from ropewalk.ledger.versions.statements import parse_version_act

    value = jcs.parse(raw)
    if isinstance(value, dict) and value.get("act") == "version":
        return parse_version_act(value).to_json()
    return parse_act(value).to_json()


def given_proposal(
    proposal: str | None, approvals: tuple[str, ...]
) -> tuple[KeyAct | None, tuple[Approval, ...]]:
    """Read a proposal and its approvals."""
    from ropewalk.ledger.keys.statements import parse_act

    if proposal is None:
        if approvals:
            raise click.UsageError("--approval needs the proposal that was approved: add --proposal")
        return None, ()
    act = parse_input(proposal, lambda raw: parse_act(jcs.parse(raw)))
    return act, read_approvals(approvals, act.to_json())


def check_fits(act: KeyAct, kind: Act, channel: str, fingerprint: bytes | None = None) -> None:
    """Raise unless a proposal is about that act, channel and key."""
    if act.act != kind or act.channel != channel:
        raise Invalid(
            f"the proposal must be to {kind} in channel {channel}, got {act.act} in channel {act.channel}",
            advice="Write a new proposal, or run the proposed command.",
        )
    if fingerprint is not None and act.key != fingerprint:
        raise Invalid("the proposal is about another key", advice="Name the key of the proposal.")


def _time(text: str | None) -> int | None:
    try:
        return parse_timestamp(text) if text is not None else None
    except Invalid as error:
        raise Invalid(
            f"--since: {error.detail}", advice="Write date, time and Z, as in 2027-01-31T12:00:00Z."
        ) from error


def _fingerprint(which: str) -> bytes:
    """Return the fingerprint of a key given by fingerprint, did:key or name."""
    from ropewalk.disk import key_files
    from ropewalk.kernel.keys import PublicKey

    raw = hash_from_hex(which)
    if raw is not None:
        return raw
    if which.startswith("did:key:"):
        return PublicKey.from_did(which).identity()
    found = key_files.read(key_folders(which) if which == "node" else key_folder(), which)
    if found.public is None:
        raise NotFound(f'key "{which}" is symmetric and has no fingerprint', name=which)
    return found.public.identity()


def _table(rows: list[dict[str, Any]], revoked: list[dict[str, Any]], channel: str) -> str:
    lines = []
    for row in rows:
        times = [f"since {row['since']}"] if row["since"] else []
        times += [f"until {row['until']}"] if row["until"] else []
        times += [f"revoked since {row['revoked_since']}"] if row["revoked_since"] else []
        lines.append(
            f"{'*' if row['counts'] else ' '} {row['fingerprint'][:16]}…  {row['did']}  {', '.join(times)}".rstrip()
        )
    known = named_keys(channel) if revoked else {}
    for row in revoked:
        who = known.get(row["fingerprint"], "unknown key")
        why = f" ({row['reason']})" if row["reason"] else ""
        lines.append(printable(f"  {row['fingerprint'][:16]}…  {who}  revoked since {row['since']}{why}"))
    return "\n".join(lines)


def _act_line(act: dict[str, Any]) -> str:
    to = f" to {act['new_fingerprint'][:16]}…" if "new_fingerprint" in act else ""
    to += f", until {act['until']}" if "until" in act else ""
    for name in ("policy", "evidence"):
        to += f" {name} {act[f'new_{name}_hash'][:16]}…" if f"new_{name}_hash" in act else ""
    to += f" in epoch {act['epoch']}" if "epoch" in act else ""
    people = f"  approved by {', '.join(act['approved_by'])}" if act["approved_by"] else ""
    return f"{act['height']}  {act['act']} {act['key'][:16]}…{to}, since {act['since']}{people}"
