"""`ropewalk.verify`: verify a repository, a proof, a receipt, a bundle, a checkpoint or archives, offline.

The kind of a target is found by its first bytes. `ropewalk verify` on the command line calls the same function.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ropewalk.errors import (
    Invalid,
    InvalidKey,
    NotFound,
    RopewalkError,
    TooLarge,
    Unavailable,
    Usage,
    located,
)

if TYPE_CHECKING:
    from ropewalk.kernel.keys import PublicKey
    from ropewalk.kernel.note.key import Verifier
    from ropewalk.kernel.report import Report
    from ropewalk.ledger.proof.trust import Trust
    from ropewalk.ledger.transparency.head_check import HeadTrust, TreeSource

T = TypeVar("T")
# COSE's tag 18 in CBOR; the first line of a C2SP proof file.
RECEIPTS = (b"\xd2", b"c2sp.org/tlog-proof@v1\n")
# A checkpoint has its log in the first line and its size in the second; any note has a dash after its last empty line.
CHECKPOINT = re.compile(rb"[^\n]+\n[0-9]+\n|.*?\n\n\xe2\x80\x94 ", re.DOTALL)
ARCHIVE = re.compile(r"[0-9]{20}-[0-9]{20}")  # a range of heights, as its folder is named
NOTE_KEY_ADVICE = "A verifier key is one word, NAME+ID+KEY, as `ledger tiles` and `witness init` print it."
START_BYTES = 4_096
INPUT_BYTES_MAX = 64 << 20


class Input(NamedTuple):
    """The bytes of a file, and its name for error messages."""

    name: str
    raw: bytes

    def parse(self, parse: Callable[[bytes], T]) -> T:
        """Parse the bytes; an error names the file."""
        with located(self.name):
            return parse(self.raw)


@dataclass(frozen=True, slots=True)
class Options:
    """What a target is verified against. Each kind uses the options that apply to it and rejects the others."""

    ns: str | None = None
    deep: bool = False
    trust: Input | Trust | None = None
    envelope: Input | None = None
    vkeys: Sequence[Verifier] = ()
    origin: str | None = None
    witnesses: Sequence[Verifier] = ()
    threshold: int | None = None
    old: Input | None = None
    tiles: Path | None = None
    channel: str | None = None
    repository: Path = Path()  # holds `channel`
    more_keys: Sequence[PublicKey] = ()
    timestamp: Input | None = None
    tsa_roots: Sequence[str] = ()
    progress: Callable[[int], None] = lambda _count: None


HEADS = {"checkpoint", "proof"}
APPLIES: dict[str, set[str]] = {  # option → kinds it applies to; the others apply to every kind
    "ns": {"repository"},
    "envelope": {"receipt"},
    **dict.fromkeys(("vkeys", "origin", "old", "tiles", "channel"), HEADS | {"receipt"}),
    **dict.fromkeys(("witnesses", "threshold"), HEADS | {"receipt", "bundle"}),
    **dict.fromkeys(("timestamp", "tsa_roots"), HEADS | {"receipt", "bundle", "archive"}),
}


def verify(
    target: str | os.PathLike[str] = ".",
    *,
    ns: str | None = None,
    deep: bool = False,
    trust: Trust | str | os.PathLike[str] | None = None,
    envelope: str | os.PathLike[str] | None = None,
    vkeys: Sequence[str] = (),
    origin: str | None = None,
    witnesses: Sequence[str] = (),
    threshold: int | None = None,
    old: str | os.PathLike[str] | None = None,
    tiles: str | os.PathLike[str] | None = None,
    timestamp: str | os.PathLike[str] | None = None,
    tsa_roots: Sequence[str] = (),
) -> Report:
    """Verify a repository, proof, receipt, bundle, checkpoint, published folder or archive folder; open no socket.

    `trust` is a trust file or a `Trust`; without it the report of something another party signed is `untrusted`.
    `ns` selects logs of a repository. `envelope` is the envelope of a receipt. `vkeys`, `origin`, `old` (an older
    checkpoint) and `tiles` (the published folder) apply to a checkpoint; `witnesses` and `threshold` also to a bundle.
    `timestamp` is an RFC 3161 answer for the file, or for the manifest of an archive, and `tsa_roots` are PEM texts.

    >>> import ropewalk, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ropewalk.init(folder) as repo:
    ...         _ = repo.events("governance").append({"type": "proposal.created", "payload": {"id": 7}})
    ...     report = ropewalk.verify(folder)
    >>> report.ok, report.verdict, report.entries
    (True, 'passed', 1)
    """
    from ropewalk.kernel.note.key import Verifier

    path = Path(target)
    options = Options(
        ns=ns,
        deep=deep,
        trust=_read(trust) if isinstance(trust, str | os.PathLike) else trust,
        envelope=None if envelope is None else _read(envelope),
        vkeys=[Verifier.from_text(each) for each in vkeys],
        origin=origin,
        witnesses=[Verifier.from_text(each) for each in witnesses],
        threshold=threshold,
        old=None if old is None else _read(old),
        tiles=None if tiles is None else Path(tiles),
        timestamp=None if timestamp is None else _read(timestamp),
        tsa_roots=list(tsa_roots),
    )
    kind = kind_of(path)
    unused = {f.name: f.default for f in fields(Options) if kind not in APPLIES.get(f.name, {kind})}
    for name, default in unused.items():
        if getattr(options, name) not in (default, []):
            kinds = " or a ".join(sorted(APPLIES[name]))
            raise Usage(f"{name} applies to a {kinds}, but {path} is a {kind}", advice=f"Leave out {name}.")
    return verify_target(path, kind, options)


def verify_target(path: Path, kind: str, options: Options) -> Report:
    """Verify a target of a known kind."""
    report = KINDS[kind](path, options)
    if options.timestamp is None:
        return report
    from ropewalk.ledger.transparency.timestamps import timestamp_step

    files = [path / "checkpoint"] if path.is_dir() else [path]
    if kind == "archive":
        files = sorted(path.rglob("archive.manifest.json"))
    stamped = [(str(each), _read(each).raw) for each in files]
    step = options.timestamp.parse(lambda raw: timestamp_step(raw, stamped, options.tsa_roots))
    return replace(report, steps=(*report.steps, step))


def kind_of(path: Path) -> str:
    """Return what a path is, by its first bytes: one of `KINDS`."""
    if path.is_dir():
        if (path / "checkpoint").is_file() and (path / "tile").is_dir():
            return "checkpoint"
        return "archive" if holds_archives(path) else "repository"
    try:
        with path.open("rb") as stream:
            start = stream.read(START_BYTES)
    except OSError as error:
        raise _unreadable(str(path), error) from error
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return "bundle"
    if start.lstrip()[:1] == b"{":
        return "proof"
    if start.startswith(RECEIPTS):
        return "receipt"
    if CHECKPOINT.match(start):
        return "checkpoint"
    raise Invalid(
        f"{path} is no repository, no proof, no receipt, no bundle and no checkpoint",
        path=str(path),
        advice="`ropewalk verify --help` has an example of each.",
    )


def holds_archives(folder: Path) -> bool:
    """Return whether a folder holds archives of channels, or is the archive of one; by names alone."""
    if (folder / "HEAD").exists() or (folder / ".git").exists():
        return False  # a repository, whatever else is in it
    return any(ARCHIVE.fullmatch(each.name) for pattern in ("*", "*/*") for each in folder.glob(pattern))


def parse_keys(raw: bytes) -> tuple[list[PublicKey], Trust | None]:
    """Parse a trust file: our JSON form, or one C2SP note key per line. Return its keys and its trust, if any."""
    from ropewalk.kernel.keys import PublicKey
    from ropewalk.ledger.proof.trust import parse_trust

    if raw.lstrip()[:1] == b"{":
        trust = parse_trust(raw)
        return list(trust.block_signers), trust
    found = [verifier.key for verifier in parse_note_keys(raw)]
    return [key for key in found if isinstance(key, PublicKey)], None  # a key that only cosigns signs no log


def parse_note_keys(raw: bytes) -> tuple[Verifier, ...]:
    """Parse C2SP verifier keys, one per line; ignore empty lines and lines that start with `#`."""
    from ropewalk.ledger.proof.trust import parse_witnesses

    try:
        return parse_witnesses(raw)
    except InvalidKey as error:
        raise InvalidKey(error.detail, advice=NOTE_KEY_ADVICE, **error.fields) from error


def head_trust(options: Options) -> HeadTrust:
    """Return whom the options trust for checkpoints; `vkeys` replace the log keys of the trust file."""
    from ropewalk.ledger.proof.trust import Trust, parse_trust
    from ropewalk.ledger.transparency.head_check import HeadTrust

    def parse(raw: bytes) -> HeadTrust:
        if raw.lstrip()[:1] == b"{":
            return HeadTrust.of(parse_trust(raw))
        return HeadTrust.of_keys(parse_note_keys(raw))

    if isinstance(options.trust, Trust):
        trust = HeadTrust.of(options.trust)
    else:
        trust = options.trust.parse(parse) if options.trust is not None else HeadTrust()
    trust = replace(
        trust,
        witnesses=(*trust.witnesses, *options.witnesses),
        threshold=options.threshold,
        origin=options.origin,
    )
    return replace(trust, keys=tuple(options.vkeys), signers=()) if options.vkeys else trust


def _repository(path: Path, options: Options) -> Report:
    from ropewalk.disk.repository_paths import find_repository
    from ropewalk.repository_check import verify_all

    keys: list[PublicKey] | None = None
    trust: Trust | None = None
    if isinstance(options.trust, Input):
        keys, trust = options.trust.parse(parse_keys)
    else:
        trust = options.trust
    return verify_all(
        find_repository(path),
        options.ns,
        deep=options.deep,
        keys=keys,
        trust=trust,
        more_keys=options.more_keys,
        progress=options.progress,
    )


def _bundle(path: Path, options: Options) -> Report:
    from ropewalk.ledger.bundle.files import verify_bundle
    from ropewalk.ledger.proof.trust import Trust

    given = _trust(options)
    trust = given or Trust((), ())
    trust = replace(trust, witnesses=(*trust.witnesses, *options.witnesses))
    found = verify_bundle(
        path, trust, deep=options.deep, threshold=options.threshold, anybody=given is None
    ).report
    return replace(found, counts={**found.counts, "entries": found.counts["envelopes"]})


def _receipt(path: Path, options: Options) -> Report:
    from ropewalk.ledger.envelope.envelope import parse_wire
    from ropewalk.ledger.transparency.receipts import check_receipt
    from ropewalk.ledger.transparency.tlog_check import check_tlog_proof

    given = options.envelope.parse(parse_wire) if options.envelope is not None else None
    receipt = _read(path)
    if receipt.raw.startswith(b"c2sp.org/"):
        heads = head_trust(options)
        return receipt.parse(lambda raw: check_tlog_proof(raw, given, heads))
    if options.witnesses or options.threshold is not None or options.vkeys:
        raise Usage(f"{path} is a COSE receipt, which carries no cosignatures; make one with --form tlog")
    trust = _trust(options)
    return receipt.parse(lambda raw: check_receipt(raw, given, trust.block_signers if trust else ()))


def _proof(path: Path, options: Options) -> Report:
    """Verify a proof of an envelope, a state, a range of blocks, one head under another, or a fork."""
    from ropewalk.kernel import jcs
    from ropewalk.ledger.block.fork import parse_fork, verify_fork
    from ropewalk.ledger.proof import proof as proofs
    from ropewalk.ledger.replay.state_proof import parse_state_proof, verify_state_proof
    from ropewalk.ledger.transparency.head_fork import parse_head_fork, verify_head_fork

    raw = _read(path, limit=proofs.PROOF_BYTES_MAX).raw
    with located(str(path)):
        value = jcs.parse(raw, bytes_max=proofs.PROOF_BYTES_MAX)
        kind = value.get("kind") if isinstance(value, dict) else None
        if isinstance(value, dict) and "block_signers" in value:
            raise Invalid("expected what is to be verified, got a trust file", advice="Name it with --trust.")
        if kind == "range":
            return proofs.parse_range(raw).report()
        if kind == "consistency":
            return proofs.parse_consistency(raw).report()
        if kind == "state":
            return verify_state_proof(parse_state_proof(raw), _trust(options))
        if kind == "head_fork":
            return verify_head_fork(parse_head_fork(raw), head_trust(options))
        found = parse_fork(raw) if kind == "fork" else proofs.parse_proof(raw)
    trust = _trust(options)
    return proofs.verify_proof(found, trust) if isinstance(found, proofs.Proof) else verify_fork(found, trust)


def _checkpoint(path: Path, options: Options) -> Report:
    """Verify a checkpoint, or the folder in which it is published with its tiles."""
    from ropewalk.disk.repository_paths import find_repository
    from ropewalk.kernel.note.note import claimed_head
    from ropewalk.ledger.channel.channel import open_channel
    from ropewalk.ledger.transparency.head_check import verify_head
    from ropewalk.ledger.transparency.heads import channel_source, tile_source
    from ropewalk.ledger.transparency.publish import CHECKPOINT

    note = _read(path / CHECKPOINT if path.is_dir() else path)
    head, _ = note.parse(claimed_head)
    trust = head_trust(options)
    old = None
    if options.old is not None:
        options.old.parse(claimed_head)
        old = options.old.raw
    if options.channel is not None:
        with open_channel(find_repository(options.repository).home, options.channel) as channel:
            return verify_head(note.raw, trust, source=channel_source(channel), old=old)
    folder = options.tiles or Path(note.name).parent
    source: TreeSource | None = None
    if options.tiles is not None or (folder / "tile").is_dir():
        source = tile_source(folder, head.size, deep=options.deep)
    return verify_head(note.raw, trust, source=source, old=old)


def _archive(path: Path, options: Options) -> Report:
    from ropewalk.ledger.archive.check import verify_archives

    return verify_archives(path, trust=_trust(options), deep=options.deep)


KINDS: dict[str, Callable[[Path, Options], Report]] = {
    "repository": _repository,
    "proof": _proof,
    "bundle": _bundle,
    "receipt": _receipt,
    "checkpoint": _checkpoint,
    "archive": _archive,
}


def _trust(options: Options) -> Trust | None:
    from ropewalk.ledger.proof.trust import parse_trust

    return options.trust.parse(parse_trust) if isinstance(options.trust, Input) else options.trust


def _read(path: str | os.PathLike[str], *, limit: int = INPUT_BYTES_MAX) -> Input:
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as stream:
            raw = stream.read(limit + 1)
    except OSError as error:
        raise _unreadable(name, error) from error
    if len(raw) > limit:
        raise TooLarge(f"{name} is larger than {limit} bytes", limit=limit, name=name)
    return Input(name, raw)


def _unreadable(name: str, error: OSError) -> RopewalkError:
    if isinstance(error, FileNotFoundError):
        return NotFound(f"no file {name}", name=name)
    return Unavailable(f"{name}: {error.strerror}", path=name, advice="Check its owner and mode.")
