"""`ropewalk verify`: check a repository, a proof, a receipt, a bundle, a checkpoint or archives, offline, in steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import command, counting, parse_input, read_input, session
from ropewalk.cli.common.locations import here, key_folder
from ropewalk.cli.common.options import flag, integer, option, repeated
from ropewalk.cli.common.verdict import allow_partly_option, end_with_report, format_report, no_trust_option

if TYPE_CHECKING:
    from ropewalk.verification import Options


@command(
    "verify",
    "ropewalk verify",
    "ropewalk verify my.git --ns governance --deep",
    "ropewalk verify proof.json --trust trust.json",
    "ropewalk verify receipt.cose --envelope envelope.json --trust trust.json",
    "ropewalk verify audit.tar.zst --trust trust.json --witness witness.vkey --threshold 1",
    "ropewalk verify /mnt/cold --trust trust.json",
    "ropewalk verify public/ --deep --vkey log.example.org/audit+1a2b3c4d+AQID…",
    "ropewalk verify seen.note --trust trust.json --threshold 2 --old last-year.note --tiles public/",
)
@click.argument("path", required=False, metavar="[PATH]")
@option("--ns", "NS", "Only this namespace or topic.")
@flag("--deep", "Also every byte of every pack, or every tile of a published log.")
@option("--trust", "F", "Keys to trust: a trust file, or lines of note keys.")
@flag("--steps", "A line for every step, also of logs in which all is well.")
@option("--envelope", "F", "With a receipt: the envelope it was given for.")
@repeated("--vkey vkeys", "VKEY|F", "With a checkpoint: its log's verifier key, or a file with it.")
@option("--origin", "TEXT", "With a checkpoint: its log's origin, if not the name of the key.")
@repeated(
    "--witness witnesses",
    "VKEY|F",
    "With a checkpoint, bundle or C2SP receipt: a witness's key, or a file with keys, one a line; repeatable.",
)
@integer(
    "--threshold",
    "N",
    "With a checkpoint, bundle or C2SP receipt: fail unless so many of the witnesses named have signed.",
)
@option("--old", "F", "With a checkpoint: an older one, which it must extend.")
@option("--tiles", "DIR", "With a checkpoint: the published folder; default: the one it lies in.")
@option("--channel", "C", "With a checkpoint: hold it against this channel, not against tiles.")
@option(
    "--timestamp",
    "F",
    "RFC 3161 time stamp of PATH, or of the manifest of an archive in it (`ledger timestamp`).",
)
@repeated("--tsa-root tsa_roots", "PEM", "Trusted root of time stamps; repeatable.")
@no_trust_option
@allow_partly_option
def verify(path: str | None, steps: bool, no_trust: bool, allow_partly: bool, **options: Any) -> None:
    """Verify PATH offline: a repository (default), proof, receipt, bundle, checkpoint or folder of archives.

    A checkpoint is a signed head in the C2SP format, or the folder it is published in, with its tiles. Archives are the
    folder given to `ledger archive --to`.

    Nothing is fetched and nothing is written. Every step is passed, failed or not checked; logs without a failed step
    have one line each. The last line is the verdict: ok, FAILED, UNTRUSTED (a signature was not checked because no
    trusted key was given) or PARTLY CHECKED (something required was not checked). Exit 5 unless
    it is ok, or accepted by --no-trust or --allow-partly. The verdict in JSON is passed, failed, untrusted or partly.
    """
    from ropewalk.verification import kind_of, verify_target

    target = Path(path) if path is not None else session().repo
    kind = "repository" if target is None else kind_of(target)
    if no_trust and options["trust"] is not None:
        raise click.UsageError("--no-trust accepts signatures of unknown keys; drop it, or --trust")
    _check_options(kind, target or "the repository", options)
    with counting("verifying", "entries") if kind == "repository" else nullcontext() as progress:
        found = verify_target(target or here().git_dir, kind, _options(kind, options, progress))
    report = found.accept(untrusted=no_trust, partly=allow_partly)
    untrusted = report.verdict == "untrusted" and not report.ok and options["trust"] is None
    end_with_report(
        report,
        lambda: format_report(report, every_step=steps),
        "No trusted key was given: name a trust file with --trust F." if untrusted else "",
    )


def _check_options(kind: str, target: Path | str, given: dict[str, Any]) -> None:
    """Raise `UsageError` for an option that does not apply to the kind of target."""
    if given["envelope"] is not None and kind != "receipt":
        raise click.UsageError(f"--envelope goes with a receipt; {target} is none")
    about_heads = ("vkeys", "origin", "old", "tiles", "channel")
    if kind not in ("checkpoint", "proof") and any(given[name] not in (None, ()) for name in about_heads):
        raise click.UsageError(
            f"{target} is no checkpoint: --vkey, --origin, --old, --tiles and --channel go with one"
        )
    about_witnesses = given["threshold"] is not None or given["witnesses"]
    if about_witnesses and kind not in ("checkpoint", "proof", "bundle", "receipt"):
        raise click.UsageError(
            f"--witness and --threshold go with a checkpoint, a bundle or a C2SP receipt; {target} is none"
        )
    if kind == "repository" and (given["timestamp"] is not None or given["tsa_roots"]):
        raise click.UsageError("--timestamp and --tsa-root go with a file or a folder of archives")
    if kind == "checkpoint" and given["channel"] is not None and given["tiles"] is not None:
        raise click.UsageError("name the --tiles or the --channel to look at, not both")


def _options(kind: str, given: dict[str, Any], progress: Callable[[int], None] | None) -> Options:
    """Return the options with their files read and their keys parsed."""
    from ropewalk.cli.common.note_keys import note_keys
    from ropewalk.disk import key_files
    from ropewalk.ledger.evidence.certificates import parse_certificates
    from ropewalk.verification import Input, Options

    def read(name: str | None) -> Input | None:
        return None if name is None else Input("stdin" if name == "-" else name, read_input(name))

    more: dict[str, Any] = {} if progress is None else {"progress": progress}
    if kind == "repository" and given["trust"] is None:
        more["more_keys"] = key_files.public_keys(key_folder())
    if given["channel"] is not None:
        more["repository"] = here().git_dir
    more |= {name: given[name] for name in ("ns", "deep", "origin", "threshold", "channel")}
    return Options(
        trust=read(given["trust"]),
        envelope=read(given["envelope"]),
        vkeys=note_keys(given["vkeys"]),
        witnesses=note_keys(given["witnesses"]),
        old=read(given["old"]),
        tiles=None if given["tiles"] is None else Path(given["tiles"]),
        timestamp=read(given["timestamp"]),
        tsa_roots=[pem for name in given["tsa_roots"] for pem in parse_input(name, parse_certificates)],
        **more,
    )
