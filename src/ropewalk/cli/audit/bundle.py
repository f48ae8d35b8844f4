"""`ropewalk bundle`: a range of blocks with its proofs in one file, for somebody who does not trust us."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import (
    MARKS,
    Group,
    emit,
    parse_input,
    progress,
    say,
    session,
    write_output,
)
from ropewalk.cli.common.locations import NODE_KEY, here, signing_key
from ropewalk.cli.common.verdict import allow_partly_option, end_with_report, verdict_name
from ropewalk.cli.ledger.channel import channel_key
from ropewalk.kernel.error_location import locate
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.kernel.keys import SigningKey
    from ropewalk.ledger.bundle.head_proofs import AnchorCollector
    from ropewalk.ledger.channel.channel import Channel


@click.group(
    "bundle",
    cls=Group,
    epilog="Examples:\n  ropewalk bundle export --channel audit --from 0 --to 9 -o audit.tar.zst\n"
    "  ropewalk ledger trust --channel audit -o trust.json\n"
    "  ropewalk bundle verify audit.tar.zst --trust trust.json --report audit.html\n",
)
def bundle() -> None:
    """Ranges of a ledger that verify anywhere, offline."""


@bundle.command(
    "export",
    epilog="Examples:\n  ropewalk bundle export --channel audit -o audit.tar.zst\n"
    "  ropewalk bundle export --channel audit --from 0 --to 99999 --chunk 1000 -o audit.tar.zst\n"
    "  ropewalk bundle export --channel audit --anchor public/checkpoint -o audit.tar.zst\n",
)
@click.option("--channel", required=True, metavar="C", help="The channel.")
@click.option("--from", "start", type=click.IntRange(0), default=0, show_default=True, help="First height.")
@click.option("--to", "end", type=click.IntRange(0), help="Last height; default: the head.")
@click.option("-o", "--output", required=True, metavar="X.tar.zst", help="Where to write it.")
@click.option("--chunk", type=click.IntRange(1), metavar="N", help="Cut the range into files of N blocks.")
@click.option("--created-at", metavar="TEXT", help="The manifest's time; default: the last block's.")
@click.option(
    "--anchor",
    "anchors",
    multiple=True,
    metavar="NOTE",
    help="A signed head of the channel, of more blocks than the last height, to carry along; may be given again.",
)
def export(
    channel: str,
    start: int,
    end: int | None,
    output: str,
    chunk: int | None,
    created_at: str | None,
    anchors: tuple[str, ...],
) -> None:
    """Write blocks with headers, proofs and a signed manifest. The same range gives the same bytes.

    The channel's key signs it; in a copy (`ledger pull`) the key of the repository does.

    What is there already, complete and right, is kept; so an interrupted export goes on where it stopped.

    An anchor (`ledger head --note`, or the checkpoint of `ledger tiles`, with whatever witnesses added to it) lets an
    auditor check that the blocks lie under a head that somebody else had seen.
    """
    from ropewalk.errors import NotFound, RangeExceeded
    from ropewalk.ledger.bundle.files import chunk_ranges, export_bundle
    from ropewalk.ledger.channel.channel import open_channel

    if output == "-":
        raise click.UsageError("a bundle is written to a file: name one with -o")
    target = Path(output)
    made = []
    with open_channel(here().home, channel) as reading:
        height = reading.head().height
        if height == 0:
            raise NotFound(f"channel {channel} has no blocks yet", channel=channel)
        last = end if end is not None else height - 1
        if not start <= last < height:  # before the first file is written
            raise RangeExceeded(f"blocks {start} to {last} of a channel of {height} blocks", channel=channel)
        carried = _read_anchors(reading, anchors) if anchors else None
        if carried is not None:
            carried.over(start, last)
        key = _exporter(reading)
        for first, final in chunk_ranges(start, last, chunk):
            path = target if chunk is None else _chunk_path(target, first, final)
            watch = partial(progress, label=path.name, total=final - first + 1)
            one = export_bundle(
                reading, key, first, final, path, created_at=created_at, anchors=carried, watch=watch
            )
            made.append(one)
            if chunk is not None:
                say(f"{'kept' if one.kept else 'wrote'}  {path}")
    answer: dict[str, Any] = {"channel": channel, "start_height": start, "end_height": made[-1].end}
    if chunk is None:
        answer = {"channel": channel, **made[0].to_json()}
    else:
        answer["files"] = [one.to_json() for one in made]
    size = sum(one.size for one in made)
    word = "kept" if all(one.kept for one in made) else "ok"
    where = output if chunk is None else made[0].path.parent
    emit(answer, f"{word}  {channel} {start}–{made[-1].end}  {size} bytes  {where}")


def _exporter(reading: Channel) -> SigningKey:
    """Who signs a bundle: the channel's key, or in a copy, whose keys are elsewhere, the key of this repository."""
    from ropewalk.errors import Conflict, NotFound

    try:
        key = channel_key(reading.settings.channel)
    except (Conflict, NotFound):
        key = signing_key(NODE_KEY)
    if reading.key_history().validity(key.public) is None:
        say(
            f"signed by {key.public.did()}, the key of this repository: those of the channel are elsewhere. Who "
            "verifies it names that key among the `bundle_signers` of a trust file."
        )
    return key


@bundle.command("inspect", epilog="Examples:\n  ropewalk bundle inspect audit.tar.zst --json\n")
@click.argument("file")
def inspect(file: str) -> None:
    """Print what a bundle says about itself. Nothing is verified."""
    from ropewalk.kernel import jcs
    from ropewalk.ledger.bundle.files import inspect_bundle
    from ropewalk.ledger.proof.steps import describe_moment

    manifest, signature = inspect_bundle(Path(file))
    lines = [
        f"channel       {printable(manifest.channel)}",
        f"heights       {manifest.start_height}–{manifest.end_height}",
        f"created_at    {describe_moment(manifest.created_at) or printable(manifest.created_at)}",
        f"signer        {manifest.signer.did()}",
        f"policy_hash   {manifest.policy_hash or '–'}",
        f"range_root    {manifest.range_root}",
        f"payload_refs  {len(manifest.payload_refs)}",
        f"files         {len(manifest.files)}, {manifest.size} bytes unpacked",
        *(f"anchor        {anchor.explain()}" for anchor in manifest.anchors),
    ]
    if not session().json:
        say("not verified: use `ropewalk bundle verify`")
    emit(
        {
            "manifest": jcs.parse(manifest.to_bytes()),
            "signature": signature.to_json(),
            "bytes": manifest.size,
            "blocks": len(manifest.heights),
            "verified": False,
        },
        "\n".join(lines),
    )


@bundle.command(
    "verify",
    epilog="Examples:\n  ropewalk bundle verify audit.tar.zst --trust trust.json --report audit.html\n"
    "  ropewalk bundle verify audit.tar.zst --trust trust.json --witness witness.vkey --threshold 1\n",
)
@click.argument("file")
@click.option("--trust", required=True, metavar="TRUST.json", help="Whom and what to believe.")
@click.option(
    "--witness",
    "witnesses",
    multiple=True,
    metavar="VKEY|F",
    help="A key whose signature on an anchor counts, or a file with such keys, one a line; may be given again.",
)
@click.option(
    "--threshold",
    type=click.IntRange(0),
    metavar="N",
    help="Fail unless so many of the witnesses named have signed an anchor.",
)
@click.option("--report", metavar="R.html", help="Also write a page that a person can read.")
@click.option(
    "--deep", is_flag=True, help="Also judge every envelope by itself: signature, version, evidence."
)
@click.option(
    "--policy",
    metavar="F",
    help="The policy the blocks were made under: judge every envelope by it too (deep).",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(1),
    metavar="N",
    help="Refuse what unpacks to more, and nothing for packing well; default: 64 GiB, a thousand times its size.",
)
@allow_partly_option
def verify(
    file: str,
    trust: str,
    witnesses: tuple[str, ...],
    threshold: int | None,
    report: str | None,
    deep: bool,
    policy: str | None,
    max_bytes: int | None,
    allow_partly: bool,
) -> None:
    """Check a bundle offline: signature, envelope hashes, Merkle paths, block signatures, policy, anchors.

    Opens no socket and extracts nothing. Exit 5 unless the verdict is `passed`, 8 if the file is no bundle.
    """
    from dataclasses import replace

    from ropewalk.cli.common.note_keys import note_keys
    from ropewalk.ledger.bundle.files import verify_bundle
    from ropewalk.ledger.bundle.html_report import render_report
    from ropewalk.ledger.bundle.zstd_file import UnpackLimits
    from ropewalk.ledger.proof.trust import parse_trust
    from ropewalk.ledger.rules.policy import parse_policy

    believed = parse_input(trust, parse_trust)
    named = [key for name in witnesses for key in note_keys(name)]
    believed = replace(believed, witnesses=(*believed.witnesses, *named))
    limits = UnpackLimits() if max_bytes is None else UnpackLimits.said(max_bytes)
    rules = parse_input(policy, parse_policy) if policy is not None else None
    verdict = verify_bundle(Path(file), believed, deep=deep, policy=rules, threshold=threshold, limits=limits)
    answer = verdict.report.accept(partly=allow_partly)
    if report is not None:
        source, anchors = Path(file).name, verdict.anchors
        page = render_report(
            answer, verdict.manifest, verdict.exhibits, believed, source=source, anchors=anchors
        )
        write_output(report, page.encode())
        say(f"report  {report}")
    counts = f"{answer.counts['envelopes']} envelopes, {answer.counts['blocks']} blocks"
    end_with_report(
        answer,
        lambda: "\n".join(
            [
                f"{verdict_name(answer)}  {file}  {counts}",
                *(
                    f"  {MARKS[step.status]} {step.name}: {step.status}"
                    f"{f' – {printable(step.detail)}' if step.detail else ''}"
                    for step in answer.steps
                ),
            ]
        ),
    )


@bundle.command(
    "compare",
    epilog="Examples:\n  ropewalk bundle compare ours.tar.zst theirs.tar.zst -o fork.json\n"
    "  ropewalk bundle compare theirs.tar.zst --channel audit\n  ropewalk verify fork.json --trust trust.json\n",
)
@click.argument("file")
@click.argument("other", required=False)
@click.option("--channel", metavar="C", help="Compare with this channel instead of another bundle.")
@click.option("-o", "--output", metavar="F", help="Where to write both sides of a fork.")
def compare(file: str, other: str | None, channel: str | None, output: str | None) -> None:
    """Look whether two bundles, or a bundle and a channel, tell one history. Exit 5 if a block differs.

    Two sealed blocks of one height prove that their signer told two histories; `-o` keeps them, `ropewalk verify`
    checks them.
    """
    from ropewalk.errors import Forked
    from ropewalk.ledger.block.find_forks import compare_bundles, compare_with_channel
    from ropewalk.ledger.channel.channel import open_channel

    if (other is None) == (channel is None):
        raise click.UsageError("name another bundle, or a --channel")
    if other is not None:
        found = compare_bundles(Path(file), Path(other))
    else:
        assert channel is not None
        with open_channel(here().home, channel) as reading:
            found = compare_with_channel(Path(file), reading)
    if found.fork is not None:
        if output is not None:
            write_output(output, found.fork.to_bytes())
            say(f"both sides: {output}")
        refusal = found.fork.error()
        if output is None and channel is None:  # beside a channel they are kept in its folder
            advice = "Run it again with -o FORK.json to keep both sides; whoever runs the channel must explain them."
            refusal = Forked(refusal.detail, advice=advice, **refusal.fields)
        raise refusal
    emit(found.to_json(), f"ok  {found.channel}  {found.same} blocks alike, {found.alone} only on one side")


def _read_anchors(reading: Channel, names: tuple[str, ...]) -> AnchorCollector:
    """The heads in these files, held against the channel; an error names the file."""
    from ropewalk.errors import Unverified
    from ropewalk.ledger.bundle.head_proofs import AnchorCollector

    anchoring = AnchorCollector(reading)
    for name in names:
        try:
            parse_input(name, anchoring.add)
        except Unverified as error:
            raise locate(error, name) from error
    return anchoring


def _chunk_path(target: Path, first: int, final: int) -> Path:
    """`audit.tar.zst` becomes `audit.0000000000-0000000999.tar.zst`."""
    stem = target.name.removesuffix(".tar.zst")
    return target.with_name(f"{stem}.{first:010d}-{final:010d}.tar.zst")
