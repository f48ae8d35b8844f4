"""Bundles beside the least anybody could do: read the same bytes and hash every envelope and every file.

The peer reads what ours reads (export: the stored blocks; verify: the packed file) and computes the id of every
envelope and the digest of every member. It parses nothing, packs nothing, builds no tree and checks no signature.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from bench.harness import Contestant, Result, compare
from bench.ledger_blocks import sealed_blocks
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.bundle.files import export_blocks, verify_bundle
from ropewalk.ledger.bundle.tar import Member, TarReader
from ropewalk.ledger.bundle.zstd_file import read_packed
from ropewalk.ledger.envelope.model import envelope_id
from ropewalk.ledger.proof.trust import Trust

__all__ = ["run"]

ROUNDS = 3


def run(quick: bool) -> list[Result]:
    """A hundred thousand envelopes of a kilobyte and more; with `quick`, seven thousand."""
    count = 7_000 if quick else 100_000
    key = SigningKey.generate("ed25519", bytes(range(32)))
    trust = Trust((key.public,), (key.public,))
    with tempfile.TemporaryDirectory() as folder:
        stored, packed = Path(folder) / "blocks", Path(folder) / "x.tar.zst"
        _store(stored, key, count)
        export_blocks(_blocks(stored), key, packed)
        if not verify_bundle(packed, trust).report.ok:
            raise AssertionError("the bundle does not verify: the comparison would mean nothing")

        def ours_export() -> int:
            export_blocks(_blocks(stored), key, packed)
            return count

        def peer_export() -> int:
            for block in _blocks(stored):
                for raw in block.envelopes:
                    envelope_id(raw)
                blake3(b"\n".join(block.envelopes)).digest()
            return count

        def ours_verify() -> int:
            if not verify_bundle(packed, trust).report.ok:
                raise AssertionError
            return count

        def peer_verify() -> int:
            reader, data, name = TarReader(), bytearray(), ""
            for piece in read_packed(packed):
                for event in reader.feed(piece):
                    if isinstance(event, Member):
                        name = event.name
                        data.clear()
                    elif event:
                        data += event
                    else:
                        blake3(bytes(data)).digest()
                        if name.startswith("blocks/"):
                            for raw in bytes(data).split(b"\n")[:-1]:
                                envelope_id(raw)
            return count

        note = f"{count} envelopes, {packed.stat().st_size >> 20} MiB packed"
        return [
            *compare(
                "bundle: export",
                Contestant("ropewalk", ours_export),
                [Contestant("read and hash", peer_export)],
                target=0.3,
                rounds=ROUNDS,
                unit="envelopes",
                note=note,
            ),
            *compare(
                "bundle: verify",
                Contestant("ropewalk", ours_verify),
                [Contestant("read and hash", peer_verify)],
                target=0.3,
                rounds=ROUNDS,
                unit="envelopes",
                note=note,
            ),
        ]


def _store(path: Path, key: SigningKey, count: int) -> None:
    """Blocks as segments hold them: the record and its envelopes, a line each."""
    with path.open("wb") as stream:
        for block in sealed_blocks(key, "bench", count):
            body = b"\n".join(block.lines())
            stream.write(len(body).to_bytes(4, "big") + body)


def _blocks(path: Path) -> Iterator[Block]:
    with path.open("rb") as stream:
        while size := int.from_bytes(stream.read(4), "big"):
            yield Block.from_lines(stream.read(size).split(b"\n"))
