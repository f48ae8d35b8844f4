"""Bundles for tests: made by us, taken apart and put together again by Python's own tarfile."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard
from blake3 import blake3
from tests.unit.ledger.making import NODE, chain_of_blocks

from ropewalk.kernel import jcs
from ropewalk.kernel.digest import Tag
from ropewalk.kernel.keys import Signature, SigningKey
from ropewalk.kernel.report import Report
from ropewalk.ledger.bundle.files import export_blocks, verify_bundle
from ropewalk.ledger.proof.trust import Trust

TRUST = Trust((NODE.public,), (NODE.public,))
Members = dict[str, bytes]


def export(path: Path, count: int = 3, per_block: int = 5) -> Path:
    """A bundle of a small chain."""
    export_blocks(chain_of_blocks(count, per_block), NODE, path)
    return path


def unpack(path: Path) -> Members:
    """The members of a bundle, in their order."""
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        out = {}
        for each in archive.getmembers():
            stream = archive.extractfile(each)
            assert stream is not None
            out[each.name] = stream.read()
        return out


def tar_of(
    members: Members | list[tuple[str, bytes]], edit: Callable[[tarfile.TarInfo], None] | None = None
) -> bytes:
    """An archive of these members as tarfile writes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, raw in members.items() if isinstance(members, dict) else members:
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            if edit is not None:
                edit(info)
            archive.addfile(info, io.BytesIO(raw))
    return buffer.getvalue()


def pack(path: Path, archive: bytes) -> Path:
    """The archive packed again."""
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(archive))
    return path


def signed(members: Members, key: SigningKey = NODE, **changes: Any) -> Members:
    """The members with a manifest that lists them as they are, signed again: a signer who lies."""
    manifest = jcs.parse(members["bundle.manifest.json"])
    assert isinstance(manifest, dict)
    manifest["files"] = [
        {"name": name, "blake3": blake3(raw).hexdigest(), "bytes": len(raw)}
        for name, raw in members.items()
        if not name.startswith("bundle.")
    ]
    manifest.update(changes)
    raw = jcs.encode(manifest)
    signature = Signature(key.alg, key.sign(Tag.BUNDLE + raw))
    out = {"bundle.manifest.json": raw, "bundle.manifest.sig": jcs.encode(signature.to_json())}
    return {**out, **{name: each for name, each in members.items() if name not in out}}


def verdict(path: Path, trust: Trust = TRUST, **options: Any) -> Report:
    """What the verifier says."""
    return verify_bundle(path, trust, **options).report


def failed(report: Report) -> set[str]:
    """The names of the steps that failed."""
    return {step.name for step in report.steps if step.status == "failed"}


def statuses(report: Report) -> dict[str, str]:
    """Each step's verdict."""
    return {step.name: step.status for step in report.steps}
