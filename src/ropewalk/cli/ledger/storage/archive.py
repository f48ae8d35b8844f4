"""`ropewalk ledger archive` and `ledger restore`: archive old blocks, and rebuild channels from archives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import MARKS, command, emit, parse_input, progress, say
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.options import channel_option, decimal, flag, integer, option, required
from ropewalk.cli.common.verdict import no_trust_option, verdict_name
from ropewalk.cli.ledger.channel import channel_key, channel_keys
from ropewalk.disk.repository_paths import make_repository
from ropewalk.errors import NotFound, Unavailable
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.ledger.archive.drill import Drill
    from ropewalk.ledger.archive.files import Watch
    from ropewalk.ledger.archive.write import ArchiveResult


def _bar(label: str) -> Watch:
    return lambda lines, total: progress(lines, label, total)


lock_option = decimal(
    "--lock-days", "N", "With s3://: lock each object for N days (Object Lock, compliance mode).", above=0
)


@command(
    "archive",
    "ropewalk ledger archive --channel audit --to /mnt/cold --keep-days 90",
    "ropewalk ledger archive --channel audit --to /mnt/cold --before 10000",
    "ropewalk verify /mnt/cold --trust trust.json",
)
@channel_option
@required("--to", "DIR|s3://BUCKET/PREFIX", "Where archives go; each channel gets a subfolder.")
@lock_option
@integer("--keep-blocks", "N", "Do not archive the last N blocks.")
@decimal("--keep-days", "M", "Do not archive blocks of the last M days.")
@integer("--before", "HEIGHT", "Archive only blocks below this height.")
def archive(
    channel: str,
    to: str,
    lock_days: float | None,
    keep_blocks: int | None,
    keep_days: float | None,
    before: int | None,
) -> None:
    """Verify old blocks and write them to write-once files, each range with a signed, chained manifest.

    Only blocks that are not archived yet are written; no file is overwritten, and the channel is not changed. Settings,
    policy, detected forks and replay snapshots are included. Detached payloads are not, so that they can be erased.
    """
    from ropewalk.ledger.archive.cold import cold_store

    if sum(each is not None for each in (keep_blocks, keep_days, before)) > 1:
        raise click.UsageError("at most one of --keep-blocks, --keep-days and --before may be given")
    home = here().home
    key = channel_key(channel)
    done = cold_store(to).archive(
        home,
        channel,
        key,
        lock_days=lock_days,
        keep_blocks=keep_blocks,
        keep_days=keep_days,
        before=before,
        watch=_bar(f"archive {channel}"),
    )
    emit(done.to_json(), _archived_lines(done))


def _archived_lines(done: ArchiveResult) -> list[str]:
    lines = [
        f"wrote  {done.channel} {each.start}–{each.end}  {each.packed} bytes  {each.path}"
        for each in done.made
    ]
    if done.snapshots is not None and done.snapshots.made:
        lines += _archived_lines(done.snapshots)[:-1]
    said = f"{done.blocks} blocks in {done.kept + len(done.made)} archives"
    if not done.made:
        return [*lines, f"kept  {done.channel}  nothing new to archive: {said}"]
    return [*lines, f"ok  {done.channel}  {said}"]


@command(
    "pack",
    "ropewalk ledger pack --channel audit --keep-days 7",
    "ropewalk ledger pack --channel audit --keep-blocks 10000 --json",
)
@channel_option
@integer("--keep-blocks", "N", "Do not compress the last N blocks.")
@decimal("--keep-days", "M", "Do not compress blocks of the last M days.")
def pack(channel: str, keep_blocks: int | None, keep_days: float | None) -> None:
    """Verify old segments and compress them in place. All commands read compressed segments.

    Only closed segments are compressed, so a channel below 64 MiB does not change. Writers may continue.
    """
    from ropewalk.ledger.archive.pack import pack_channel

    if keep_blocks is not None and keep_days is not None:
        raise click.UsageError("at most one of --keep-blocks and --keep-days may be given")
    done = pack_channel(
        here().home, channel, keep_blocks=keep_blocks, keep_days=keep_days, watch=_bar(f"pack {channel}")
    )
    said = f"{done.segments} segments packed"
    emit(
        done.to_json(),
        f"ok  {channel}  {said}, {done.made} of them now: {done.size} bytes are {done.packed}"
        if done.made
        else f"kept  {channel}  nothing new to pack: {said}",
    )


@command(
    "retain",
    "ropewalk ledger retain --channel audit --to /mnt/cold --keep-days 90",
    "ropewalk ledger retain --channel audit --to s3://audit-archive/ledger --keep-days 90 --lock-days 3650",
)
@channel_option
@required("--to", "DIR|s3://BUCKET/PREFIX", "Where archives go; reads of dropped blocks go there, too.")
@lock_option
@integer("--keep-blocks", "N", "Keep the last N blocks here.")
@decimal("--keep-days", "M", "Keep the blocks of the last M days here.")
@flag("--no-summary", "Seal no summary block of what is dropped.")
def retain(
    channel: str,
    to: str,
    lock_days: float | None,
    keep_blocks: int | None,
    keep_days: float | None,
    no_summary: bool,
) -> None:
    """Archive old blocks, verify the archives, and drop the local segments that hold nothing else.

    Every command reads dropped blocks out of the archives. A segment is dropped only if they give its exact bytes back
    and, for a channel with witnesses, its blocks are under a witnessed head. A summary block in the channel records the
    range and its root. Only closed segments are dropped, so a channel below 64 MiB does not change.
    """
    from ropewalk.ledger.archive.retain import retain_channel

    if (keep_blocks is None) == (keep_days is None):
        raise click.UsageError("exactly one of --keep-blocks and --keep-days must be given")
    done = retain_channel(
        here().home,
        channel,
        lambda: channel_keys(channel),
        to,
        keep_blocks=keep_blocks,
        keep_days=keep_days,
        lock_days=lock_days,
        summary=not no_summary,
    )
    if done.limited_by:
        say(f"kept more than asked for: {done.limited_by}")
    said = f"{done.archived} blocks archived, {done.dropped} segments dropped, {done.size} bytes freed"
    emit(done.to_json(), f"ok  {channel}  {said}")


@command(
    "restore",
    "ropewalk ledger restore --from /mnt/cold --channel audit --to-repo rebuilt.git --trust trust.json",
    "ropewalk ledger restore --from /mnt/cold --channel audit --drill --record drill.json",
)
@required("--from source", "DIR|s3://BUCKET/PREFIX", "Where the archives are.")
@channel_option
@option("--to-repo", "PATH", "Repository to rebuild the channel in, created if missing (default: --repo).")
@option("--trust", "F", "Trust file (default: the key that the archives name).")
@flag("--deep", "Also check every envelope and its evidence.")
@flag("--drill", "Rebuild in a temporary folder, compare, and print the time it took.")
@option(
    "--record", "F", "With --drill: output file for the result (default: drills/ in the channel's folder)."
)
@no_trust_option
def restore(
    source: str,
    channel: str,
    to_repo: str | None,
    trust: str | None,
    deep: bool,
    drill: bool,
    record: str | None,
    no_trust: bool,
) -> None:
    """Rebuild a channel from its archives: the same blocks, roots, proofs and replays, or nothing.

    A gap, an archive of another channel or a damaged file is refused. Archives hold no secret key: to append to the
    rebuilt channel, copy its signing key.

    With --drill, rebuild, prove and replay the channel in a temporary folder and, if the repository has it, compare it
    block by block. Exit 5 if something differs, or if neither a trust file nor a live channel confirms the key.
    """
    from ropewalk.ledger.archive.cold import cold_store
    from ropewalk.ledger.archive.restore import restore_channel
    from ropewalk.ledger.proof.trust import parse_trust

    if drill and to_repo is not None:
        raise click.UsageError("--drill and --to-repo exclude each other: a drill uses a temporary folder")
    if record is not None and not drill:
        raise click.UsageError("--record needs --drill")
    believed = parse_input(trust, parse_trust) if trust is not None else None
    if believed is None and not drill:
        say("no trust file: the key that the archives name is believed")
    if drill:
        watch = _bar(f"drill {channel}")
        with cold_store(source).folder() as folder:
            _drill(folder, channel, record, no_trust, trust=believed, deep=deep, watch=watch)
        return
    home = here().home if to_repo is None else make_repository(Path(to_repo))[0].home
    watch = _bar(f"restore {channel}")
    with cold_store(source).folder() as folder:
        done = restore_channel(folder, channel, home, trust=believed, deep=deep, watch=watch)
    for note in done.notes:
        say(note)
    emit(
        done.to_json(),
        f"ok  {channel}  {done.blocks} blocks, {done.envelopes} envelopes from {done.archives} archives\n"
        f"    last block  {done.block_hash.hex()}\n    outer root  {done.outer_root.hex()}",
    )


def _drill(source: Path, channel: str, record: str | None, no_trust: bool, **options: Any) -> None:
    from ropewalk.ledger.archive.drill import record_drill, run_drill
    from ropewalk.ledger.channel.settings import FOLDER, channels

    try:
        home: Path | None = here().home
    except NotFound:
        home = None  # an empty machine: nothing to compare with
    live = home if home is not None and channel in channels(home) else None
    done = run_drill(source, channel, live, **options)
    done = replace(done, report=done.report.accept(untrusted=no_trust))
    kept: Path | None = None
    if record is not None:
        kept = record_drill(done, Path(record))
    elif live is not None:
        folder = live / FOLDER / channel / "drills"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            kept = record_drill(done, folder)
        except (OSError, Unavailable) as error:  # who may only read can rehearse, too
            say(f"not recorded: {error}; name a place with --record")
    if kept is not None:
        say(f"recorded  {kept}")
    emit(done.to_json(), _drill_lines(done))
    if done.report.exit_code:
        raise click.exceptions.Exit(done.report.exit_code)


def _drill_lines(done: Drill) -> list[str]:
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in done.seconds.items())
    roots = [
        f"    {name.replace('_', ' '):<12} {done.facts[name]}"
        for name in ("block_hash", "outer_root", "header_root", "state_root")
        if name in done.facts
    ]
    return [
        *(f"{MARKS[step.status]} {step.name:<28} {printable(step.detail)}" for step in done.report.steps),
        *roots,
        f"{verdict_name(done.report)}  {done.channel}  drill took {done.seconds_total:.1f} s ({parts})",
    ]
