"""`ropewalk ledger archive` and `ledger restore`: old blocks to write-once storage, and a channel back from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import MARKS, Command, emit, parse_input, progress, say
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.verdict import no_trust_option, verdict_name
from ropewalk.cli.ledger.channel import channel_key
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.kernel.report import Report
    from ropewalk.ledger.archive.drill import Drill
    from ropewalk.ledger.archive.write import ArchiveResult

Lines = Iterable[tuple[int, list[bytes]]]


def _bar(label: str) -> Callable[[Lines, int], Lines]:
    return lambda lines, total: progress(lines, label, total)


@click.command(
    "archive",
    cls=Command,
    epilog="Examples:\n  ropewalk ledger archive --channel audit --to /mnt/cold --keep-days 90\n"
    "  ropewalk ledger archive --channel audit --to /mnt/cold --before 10000\n"
    "  ropewalk verify /mnt/cold --trust trust.json\n",
)
@click.option("--channel", required=True, metavar="C", help="The channel.")
@click.option(
    "--to", required=True, metavar="DIR", help="Where archives go, each channel in a folder of its own."
)
@click.option("--keep-blocks", type=click.IntRange(0), metavar="N", help="Leave out the last N blocks.")
@click.option(
    "--keep-days", type=click.FloatRange(0), metavar="M", help="Leave out blocks of the last M days."
)
@click.option("--before", type=click.IntRange(0), metavar="HEIGHT", help="Only blocks below this height.")
def archive(
    channel: str, to: str, keep_blocks: int | None, keep_days: float | None, before: int | None
) -> None:
    """Write old blocks as write-once files, verified first, each range with a signed manifest naming the one before.

    Only what no archive there holds yet is written, and nothing is written over; the channel itself stays as it is. Its
    settings, its policy, the forks that were seen and the snapshots of replays come along. Detached payloads do not, so
    that they can still be erased.
    """
    from ropewalk.ledger.archive.write import archive_channel

    if sum(each is not None for each in (keep_blocks, keep_days, before)) > 1:
        raise click.UsageError("--keep-blocks, --keep-days and --before say three different things; give one")
    home = here().home
    key = channel_key(channel)
    done = archive_channel(
        home,
        channel,
        key,
        Path(to),
        keep_blocks=keep_blocks,
        keep_days=keep_days,
        before=before,
        watch=_bar(f"archive {channel}"),
    )
    emit(done.to_json(), lambda: "\n".join(_archived_lines(done)))


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


@click.command(
    "pack",
    cls=Command,
    epilog="Examples:\n  ropewalk ledger pack --channel audit --keep-days 7\n"
    "  ropewalk ledger pack --channel audit --keep-blocks 10000 --json\n",
)
@click.option("--channel", required=True, metavar="C", help="The channel.")
@click.option(
    "--keep-blocks", type=click.IntRange(0), metavar="N", help="Leave the last N blocks as they are."
)
@click.option(
    "--keep-days", type=click.FloatRange(0), metavar="M", help="Leave blocks of the last M days as they are."
)
def pack(channel: str, keep_blocks: int | None, keep_days: float | None) -> None:
    """Compress old segments where they lie, verified first. Every command reads them as before, at the same places.

    Only whole segments that are closed are packed, so a channel below 64 MiB stays as it is. Nobody need be stopped.
    """
    from ropewalk.ledger.archive.pack import pack_channel

    if keep_blocks is not None and keep_days is not None:
        raise click.UsageError("--keep-blocks and --keep-days say two different things; give one")
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


@click.command(
    "restore",
    cls=Command,
    epilog="Examples:\n"
    "  ropewalk ledger restore --from /mnt/cold --channel audit --to-repo rebuilt.git --trust trust.json\n"
    "  ropewalk ledger restore --from /mnt/cold --channel audit --drill --record drill.json\n",
)
@click.option("--from", "source", required=True, metavar="DIR", help="Where the archives are.")
@click.option("--channel", required=True, metavar="C", help="The channel.")
@click.option(
    "--to-repo",
    metavar="PATH",
    help="The repository to rebuild it in, made if it is missing; default: --repo.",
)
@click.option(
    "--trust", metavar="F", help="A trust file; default: the key that the archives name, and it is said so."
)
@click.option("--deep", is_flag=True, help="Also judge every envelope and its evidence.")
@click.option(
    "--drill", is_flag=True, help="Rebuild it in a temporary folder, compare, and say how long it took."
)
@click.option(
    "--record",
    metavar="F",
    help="With --drill: where the result goes; default: the live channel's folder, drills/.",
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
    """Rebuild a channel from its archives alone: the same blocks, roots, proofs and replays, or nothing at all.

    A gap, another channel's archive or a damaged file is refused, with its place. Archives hold no secret key: whoever
    is to append to the rebuilt channel needs the one it was sealed with.

    With --drill nothing is kept: the channel is rebuilt, proved and replayed in an empty folder and, if the repository
    has it, compared with it block by block. Exit 5 if something is not the same, or if neither a trust file nor a live
    channel says whose key it is.
    """
    from ropewalk.disk.repository_paths import make_repository
    from ropewalk.ledger.archive.restore import restore_channel
    from ropewalk.ledger.proof.trust import parse_trust

    if drill and to_repo is not None:
        raise click.UsageError("--drill rebuilds in a temporary folder: drop --to-repo")
    if record is not None and not drill:
        raise click.UsageError("--record goes with --drill")
    believed = parse_input(trust, parse_trust) if trust is not None else None
    if believed is None and not drill:
        say("no trust file: the key that the archives name is believed")
    if drill:
        watch = _bar(f"drill {channel}")
        _drill(Path(source), channel, record, no_trust, trust=believed, deep=deep, watch=watch)
        return
    home = here().home if to_repo is None else make_repository(Path(to_repo))[0].home
    done = restore_channel(
        Path(source), channel, home, trust=believed, deep=deep, watch=_bar(f"restore {channel}")
    )
    for note in done.notes:
        say(note)
    emit(
        done.to_json(),
        f"ok  {channel}  {done.blocks} blocks, {done.envelopes} envelopes from {done.archives} archives\n"
        f"    last block  {done.block_hash.hex()}\n    outer root  {done.outer_root.hex()}",
    )


def _drill(source: Path, channel: str, record: str | None, no_trust: bool, **options: Any) -> None:
    from ropewalk.errors import NotFound, Unavailable
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
    emit(done.to_json(), lambda: "\n".join(_drill_lines(done)))
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
        *_step_lines(done.report),
        *roots,
        f"{verdict_name(done.report)}  {done.channel}  drill took {done.seconds_total:.1f} s ({parts})",
    ]


def _step_lines(report: Report) -> list[str]:
    return [f"{MARKS[step.status]} {step.name:<28} {printable(step.detail)}" for step in report.steps]
