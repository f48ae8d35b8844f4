"""`ropewalk verify`: check a repository, a proof, a receipt, a bundle, a checkpoint or archives, offline, in steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import Command, session
from ropewalk.cli.common.verdict import allow_partly_option, end_with_report, format_report, no_trust_option
from ropewalk.errors import Invalid, NotFound

if TYPE_CHECKING:
    from ropewalk.kernel.report import Report

RECEIPTS = (
    b"\xd2",
    b"c2sp.org/tlog-proof@v1\n",
)  # COSE's tag 18 in CBOR; the first line of a C2SP proof file
# A checkpoint has its log in the first line and its size in the second; any note has a dash after its last empty line.
CHECKPOINT = re.compile(rb"[^\n]+\n[0-9]+\n|.*?\n\n\xe2\x80\x94 ", re.DOTALL)
ARCHIVE = re.compile(r"[0-9]{20}-[0-9]{20}")  # the heights of a range, as its folder is called
START_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be verified, and against what; each kind looks at what concerns it."""

    path: Path | None  # None: the repository we stand in
    ns: str | None = None
    deep: bool = False
    trust: str | None = None
    envelope: str | None = None
    vkeys: tuple[str, ...] = ()
    origin: str | None = None
    witnesses: tuple[str, ...] = ()
    threshold: int | None = None
    old: str | None = None
    tiles: str | None = None
    channel: str | None = None

    @property
    def about_heads(self) -> bool:
        """Whether something was asked that only a checkpoint answers."""
        return any(
            each not in (None, ()) for each in (self.vkeys, self.origin, self.old, self.tiles, self.channel)
        )

    @property
    def about_witnesses(self) -> bool:
        """Whether something was asked that a checkpoint answers, or a bundle with anchors."""
        return self.threshold is not None or bool(self.witnesses)


# kind → (module, function). The function takes what was asked and returns the report.
KINDS: dict[str, tuple[str, str]] = {
    "repository": ("ropewalk.cli.audit.verify_repository", "verify_repository"),
    "proof": ("ropewalk.cli.ledger.proof", "verify_proof_file"),
    "bundle": ("ropewalk.cli.audit.bundle", "verify_bundle_file"),
    "receipt": ("ropewalk.cli.ledger.proof", "verify_receipt_file"),
    "checkpoint": ("ropewalk.cli.audit.verify_head", "verify_head_file"),
    "archive": ("ropewalk.cli.ledger.storage.archive", "verify_archive_folder"),
}


@click.command(
    "verify",
    cls=Command,
    epilog="Examples:\n  ropewalk verify\n  ropewalk verify my.git --ns governance --deep\n"
    "  ropewalk verify proof.json --trust trust.json\n"
    "  ropewalk verify receipt.cose --envelope envelope.json --trust trust.json\n"
    "  ropewalk verify audit.tar.zst --trust trust.json --witness witness.vkey --threshold 1\n"
    "  ropewalk verify /mnt/cold --trust trust.json\n"
    "  ropewalk verify public/ --deep --vkey log.example.org/audit+1a2b3c4d+AQID…\n"
    "  ropewalk verify seen.note --trust trust.json --threshold 2 --old last-year.note --tiles public/\n",
)
@click.argument("path", required=False, metavar="[PATH]")
@click.option("--ns", help="Only this namespace or topic.")
@click.option("--deep", is_flag=True, help="Also every byte of every pack, or every tile of a published log.")
@click.option("--trust", metavar="F", help="Keys to trust: a trust file, or lines of note keys.")
@click.option("--steps", is_flag=True, help="A line for every step, also of logs in which all is well.")
@click.option("--envelope", metavar="F", help="With a receipt: the envelope it was given for.")
@click.option(
    "--vkey",
    "vkeys",
    multiple=True,
    metavar="VKEY|F",
    help="With a checkpoint: its log's verifier key, or a file with it.",
)
@click.option(
    "--origin", metavar="TEXT", help="With a checkpoint: its log's origin, if not the name of the key."
)
@click.option(
    "--witness",
    "witnesses",
    multiple=True,
    metavar="VKEY|F",
    help="With a checkpoint or a bundle: a witness's key, or a file with keys, one a line; may be given again.",
)
@click.option(
    "--threshold",
    type=click.IntRange(0),
    metavar="N",
    help="With a checkpoint or a bundle: fail unless so many of the witnesses named have signed.",
)
@click.option("--old", metavar="F", help="With a checkpoint: an older one, which it must extend.")
@click.option(
    "--tiles", metavar="DIR", help="With a checkpoint: the published folder; default: the one it lies in."
)
@click.option(
    "--channel", metavar="C", help="With a checkpoint: hold it against this channel, not against tiles."
)
@no_trust_option
@allow_partly_option
def verify(path: str | None, steps: bool, no_trust: bool, allow_partly: bool, **options: Any) -> None:
    """Verify PATH (a repository, a proof, a receipt, a bundle, a checkpoint, archives; else the repository) offline.

    A checkpoint is a signed head as C2SP writes it, or the folder it is published in, with its tiles. Archives are what
    `ledger archive` wrote, in the folder it was told.

    Nothing is fetched and nothing is written. Every step is named as passed, failed or not checked; of several logs,
    those in which all is well have one line each. The last line is the verdict: ok, FAILED, UNTRUSTED (a signature was
    not judged because no trusted key was given) or PARTLY CHECKED (something required was not checked). Exit 5 unless
    it is ok, or accepted by --no-trust or --allow-partly. The verdict in JSON is passed, failed, untrusted or partly.
    """
    target = Path(path) if path is not None else session().repo
    kind = "repository" if target is None else kind_of(target)
    if kind not in KINDS:
        raise Invalid(f"{target}: a {kind} cannot be verified by this installation", kind=kind)
    if no_trust and options["trust"] is not None:
        raise click.UsageError("--no-trust accepts signatures of unknown keys; drop it, or --trust")
    asked = Asked(target, **options)
    if asked.envelope is not None and kind != "receipt":
        raise click.UsageError(f"--envelope goes with a receipt; {target or 'the repository'} is none")
    if asked.about_heads and kind not in ("checkpoint", "proof"):
        raise click.UsageError(
            f"{target or 'the repository'} is no checkpoint: --vkey, --origin, --old, --tiles and --channel go with one"
        )
    if asked.about_witnesses and kind not in ("checkpoint", "proof", "bundle"):
        raise click.UsageError(
            f"--witness and --threshold go with a checkpoint or a bundle; {target or 'the repository'} is none"
        )
    module, name = KINDS[kind]
    check: Callable[[Asked], Report] = getattr(import_module(module), name)
    report = check(asked).accept(untrusted=no_trust, partly=allow_partly)
    end_with_report(report, lambda: format_report(report, every_step=steps))


def kind_of(path: Path) -> str:
    """What a path is, by looking at its first bytes."""
    if path.is_dir():
        if (path / "checkpoint").is_file() and (path / "tile").is_dir():
            return "checkpoint"
        return "archive" if holds_archives(path) else "repository"
    try:
        with path.open("rb") as stream:
            start = stream.read(START_BYTES)
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}", path=str(path)) from error
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return "bundle"
    if start.lstrip()[:1] == b"{":
        return "proof"
    if start.startswith(RECEIPTS):
        return "receipt"
    if CHECKPOINT.match(start):
        return "checkpoint"
    raise Invalid(
        f"{path} is no repository, no proof, no receipt, no bundle and no checkpoint", path=str(path)
    )


def holds_archives(folder: Path) -> bool:
    """Whether a folder holds archives of channels, or is one such channel's; by names alone."""
    if (folder / "HEAD").exists() or (folder / ".git").exists():
        return False  # a repository, whatever else lies in it
    return any(ARCHIVE.fullmatch(each.name) for pattern in ("*", "*/*") for each in folder.glob(pattern))
