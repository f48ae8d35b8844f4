"""`ropewalk bundle`: export and verify a range of blocks with its proofs in one file."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk import __version__
from ropewalk.cli.common.command import MARKS, emit, group, parse_input, progress, say, session, write_output
from ropewalk.cli.common.locations import NODE_KEY, signing_key
from ropewalk.cli.common.options import channel_option, choice, flag, integer, option, repeated, required
from ropewalk.cli.common.verdict import allow_partly_option, end_with_report, verdict_name
from ropewalk.cli.ledger.channel import channel_key, read_channel
from ropewalk.errors import Conflict, Forked, NotFound, RangeExceeded, Unverified, locate
from ropewalk.kernel import jcs
from ropewalk.kernel.report import Step
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.kernel.keys import SigningKey
    from ropewalk.ledger.bundle.head_proofs import AnchorCollector
    from ropewalk.ledger.channel.channel import Channel


@group(
    "bundle",
    "ropewalk bundle export --channel audit --from 0 --to 9 -o audit.tar.zst",
    "ropewalk ledger trust --channel audit -o trust.json",
    "ropewalk bundle verify audit.tar.zst --trust trust.json --report audit.html",
)
def bundle() -> None:
    """Export and verify ranges of a ledger as files that anyone can check offline."""


@bundle.command(
    "export",
    "ropewalk bundle export --channel audit -o audit.tar.zst",
    "ropewalk bundle export --channel audit --from 0 --to 99999 --chunk 1000 -o audit.tar.zst",
    "ropewalk bundle export --channel audit --anchor public/checkpoint -o audit.tar.zst",
)
@channel_option
@integer("--from start", "N", "First height to export.", default=0)
@integer("--to end", "N", "Last height to export (default: the head).")
@required("-o --output", "X.tar.zst", "Output file.")
@integer("--chunk", "N", "Write one file per N blocks (default: one file).", least=1)
@option("--created-at", "TEXT", "Time in the manifest (default: that of the last block).")
@repeated(
    "--anchor anchors",
    "NOTE",
    "Signed head of the channel that covers the last height, to include; repeatable.",
)
@choice(
    "--encoding",
    ["json", "both"],
    "Encodings of the envelopes: JSON alone, or also CBOR, which verifying compares.",
    default="json",
)
def export(
    channel: str,
    start: int,
    end: int | None,
    output: str,
    chunk: int | None,
    created_at: str | None,
    anchors: tuple[str, ...],
    encoding: str,
) -> None:
    """Export blocks with headers, proofs and a signed manifest. The same range gives the same bytes.

    The channel's key signs the bundle; for a replica (`ledger pull`) the key of the repository does.

    Existing complete files are kept, so an interrupted export continues where it stopped.

    An anchor (`ledger head --note`, or the checkpoint of `ledger tiles` with its cosignatures) lets an auditor check
    that the blocks are under a head that witnesses have seen. Without --anchor, the newest head that the channel's
    witnesses have cosigned (`ledger witness`) is included if it covers the last height.
    """
    from ropewalk.ledger.bundle.files import chunk_ranges, export_bundle

    if output == "-":
        raise click.UsageError("-o must name a file: a bundle cannot be written to stdout")
    target = Path(output)
    made = []
    with read_channel(channel) as reading:
        height = reading.head().height
        if height == 0:
            raise NotFound(f"channel {channel} has no blocks yet", channel=channel)
        last = end if end is not None else height - 1
        if not start <= last < height:  # before the first file is written
            raise RangeExceeded(
                f"--from and --to must be at most {height - 1} and in order: the channel has {height} blocks, "
                f"got {start} and {last}",
                channel=channel,
            )
        carried = _read_anchors(reading, anchors) if anchors else _witnessed_head(reading, last)
        if carried is not None:
            carried.over(start, last)
        key = _exporter(reading)
        for first, final in chunk_ranges(start, last, chunk):
            path = target if chunk is None else _chunk_path(target, first, final)
            one = export_bundle(
                reading,
                key,
                first,
                final,
                path,
                created_at=created_at,
                anchors=carried,
                watch=partial(progress, label=path.name, total=final - first + 1),
                both=encoding == "both",
            )
            made.append(one)
            if chunk is not None:
                say(f"{'kept' if one.kept else 'wrote'}  {path}")
    answer: dict[str, Any] = {"start_height": start, "end_height": made[-1].end}
    answer = made[0].to_json() if chunk is None else {**answer, "files": [one.to_json() for one in made]}
    size = sum(one.size for one in made)
    word = "kept" if all(one.kept for one in made) else "ok"
    where = output if chunk is None else made[0].path.parent
    emit({"channel": channel, **answer}, f"{word}  {channel} {start}–{made[-1].end}  {size} bytes  {where}")


def _exporter(reading: Channel) -> SigningKey:
    """Return the key that signs a bundle: the channel's key, or for a replica the key of this repository."""
    try:
        key = channel_key(reading.settings.channel)
    except (Conflict, NotFound):
        key = signing_key(NODE_KEY)
    if reading.key_history().validity(key.public) is None:
        say(
            f"signed by {key.public.did()}, the key of this repository: the channel's key is not on this machine. "
            "Verifiers must list it in `bundle_signers` of their trust file."
        )
    return key


@bundle.command("inspect", "ropewalk bundle inspect audit.tar.zst --json")
@click.argument("file")
def inspect(file: str) -> None:
    """Print the manifest of a bundle, without verifying anything."""
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
    "ropewalk bundle verify audit.tar.zst --trust trust.json --report audit.html",
    "ropewalk bundle verify audit.tar.zst --trust trust.json --witness witness.vkey --threshold 1",
)
@click.argument("file")
@required("--trust", "TRUST.json", "Trust file.")
@repeated(
    "--witness witnesses", "VKEY|F", "Trusted witness key, or a file with one key per line; repeatable."
)
@integer("--threshold", "N", "Minimum number of named witnesses that must have signed an anchor.")
@option(
    "--channel", "C", "Channel that the bundle must be of; a trust file names keys, which may seal several."
)
@option("--report", "R.html", "Also write an HTML report.")
@flag("--deep", "Also check every envelope: signature, version, evidence.")
@option("--policy", "F", "Policy of the blocks: with --deep, also check every envelope against it.")
@integer(
    "--max-bytes", "N", "Maximum unpacked size (default: 64 GiB or 1,000 times the compressed size).", least=1
)
@allow_partly_option
def verify(
    file: str,
    trust: str,
    witnesses: tuple[str, ...],
    threshold: int | None,
    channel: str | None,
    report: str | None,
    deep: bool,
    policy: str | None,
    max_bytes: int | None,
    allow_partly: bool,
) -> None:
    """Verify a bundle offline: signature, envelope hashes, Merkle paths, block signatures, policy, anchors.

    Opens no socket and extracts nothing. Exit 5 unless the verdict is `passed`, 8 if the file is not a bundle.
    """
    from ropewalk.cli.common.note_keys import note_keys
    from ropewalk.ledger.bundle.files import verify_bundle
    from ropewalk.ledger.bundle.html_report import render_report
    from ropewalk.ledger.bundle.zstd_file import UnpackLimits
    from ropewalk.ledger.proof.trust import parse_trust
    from ropewalk.ledger.rules.policy import parse_policy

    believed = parse_input(trust, parse_trust)
    believed = replace(believed, witnesses=(*believed.witnesses, *note_keys(witnesses)))
    limits = UnpackLimits() if max_bytes is None else UnpackLimits.said(max_bytes)
    rules = parse_input(policy, parse_policy) if policy is not None else None
    verdict = verify_bundle(Path(file), believed, deep=deep, policy=rules, threshold=threshold, limits=limits)
    found = verdict.report
    if channel is not None and verdict.manifest is not None:
        is_it = verdict.manifest.channel == channel
        said = f'the bundle is of channel "{verdict.manifest.channel}"'
        step = Step(
            "channel", "passed" if is_it else "failed", said if is_it else f'{said}, expected "{channel}"'
        )
        found = replace(found, steps=(*found.steps, step))
    answer = found.accept(partly=allow_partly)
    if report is not None:
        page = render_report(
            answer,
            verdict.manifest,
            verdict.exhibits,
            believed,
            source=Path(file).name,
            anchors=verdict.anchors,
            listed=verdict.listed,
            about=about_run(Path(file), Path(trust)),
        )
        write_output(report, page.encode())
        say(f"report  {report}")
    counts = f"{answer.counts['envelopes']} envelopes, {answer.counts['blocks']} blocks"
    lines = [f"{verdict_name(answer)}  {file}  {counts}"]
    for step in answer.steps:
        detail = f" – {printable(step.detail)}" if step.detail else ""
        lines.append(f"  {MARKS[step.status]} {step.name}: {step.status}{detail}")
    end_with_report(answer, lambda: "\n".join(lines))


def about_run(file: Path, trust: Path) -> dict[str, str]:
    """Return what an audit page records about its run: the exact files, the verifier and the time."""
    return {
        "File": f"{file.name}, {file.stat().st_size} bytes",
        "SHA-256 of the file": _sha256(file),
        "Trust file": trust.name,
        "SHA-256 of the trust file": _sha256(trust) if trust.is_file() else "not a file",
        "Verified by": f"ropewalk {__version__}",
        "Verified at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    }


def _sha256(path: Path) -> str:
    import hashlib

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@bundle.command(
    "compare",
    "ropewalk bundle compare ours.tar.zst theirs.tar.zst -o fork.json",
    "ropewalk bundle compare theirs.tar.zst --channel audit",
    "ropewalk verify fork.json --trust trust.json",
)
@click.argument("file")
@click.argument("other", required=False)
@option("--channel", "C", "Compare with this channel instead of another bundle.")
@option("-o --output", "F", "Output file for both sides of a fork.")
def compare(file: str, other: str | None, channel: str | None, output: str | None) -> None:
    """Compare two bundles, or a bundle and a channel. Exit 5 if a block differs.

    Two signed blocks of the same height prove a fork. `-o` writes both, and `ropewalk verify` checks them.
    """
    from ropewalk.ledger.block.find_forks import compare_bundles, compare_with_channel

    if (other is None) == (channel is None):
        raise click.UsageError("exactly one of OTHER and --channel must be given")
    if other is not None:
        found = compare_bundles(Path(file), Path(other))
    else:
        assert channel is not None
        with read_channel(channel) as reading:
            found = compare_with_channel(Path(file), reading)
    if found.fork is not None:
        if output is not None:
            write_output(output, found.fork.to_bytes())
            say(f"both sides: {output}")
        refusal = found.fork.error()
        if output is None and channel is None:  # with --channel they are kept in its folder
            advice = "Run it again with -o FORK.json to keep both sides, then ask the channel's operator about them."
            refusal = Forked(refusal.detail, advice=advice, **refusal.fields)
        raise refusal
    emit(found.to_json(), f"ok  {found.channel}  {found.same} blocks alike, {found.alone} only on one side")


def _witnessed_head(reading: Channel, last: int) -> AnchorCollector | None:
    """Return the channel's newest cosigned head as anchor, if there is one that covers the last height."""
    from ropewalk.kernel.note.note import claimed_head
    from ropewalk.ledger.bundle.head_proofs import AnchorCollector
    from ropewalk.ledger.channel.witnessed import read_witnessed

    note = read_witnessed(reading.folder)
    if note is None or claimed_head(note)[0].size <= last:
        return None
    anchoring = AnchorCollector(reading)
    anchoring.add(note)
    return anchoring


def _read_anchors(reading: Channel, names: tuple[str, ...]) -> AnchorCollector:
    """Read signed heads and compare them with the channel; errors name the file."""
    from ropewalk.ledger.bundle.head_proofs import AnchorCollector

    anchoring = AnchorCollector(reading)
    for name in names:
        try:
            parse_input(name, anchoring.add)
        except Unverified as error:
            raise locate(error, name) from error
    return anchoring


def _chunk_path(target: Path, first: int, final: int) -> Path:
    """Return the file name of a chunk, such as `audit.0000000000-0000000999.tar.zst`."""
    stem = target.name.removesuffix(".tar.zst")
    return target.with_name(f"{stem}.{first:010d}-{final:010d}.tar.zst")
