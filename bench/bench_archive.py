"""Archives beside the least anybody could do with the same bytes: read, hash, pack or unpack, and write them.

The peer of archiving reads the segments, hashes them and packs them as we do; the peer of restoring reads the packed
files, hashes them, unpacks them and writes what comes out. Neither looks at a block: no tree, no link, no signature.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import zstandard
from blake3 import blake3

from bench.harness import Contestant, Result, compare
from bench.ledger_blocks import sealed_blocks
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.archive.check import verify_archives
from ropewalk.ledger.archive.files import LEVEL, THREADS
from ropewalk.ledger.archive.manifest import BLOCKS
from ropewalk.ledger.archive.restore import restore_channel
from ropewalk.ledger.archive.write import archive_channel
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.segments.writer import SegmentWriter
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.proof.trust import Trust

__all__ = ["run"]

CHANNEL = "bench"
PIECE_BYTES = 1 << 20
ROUNDS = 3


def run(quick: bool) -> list[Result]:
    """A hundred thousand envelopes of a kilobyte and more; with `quick`, seven thousand."""
    count = 7_000 if quick else 100_000
    key = SigningKey.generate("ed25519", bytes(range(32)))
    trust = Trust((key.public,), (key.public,))
    with tempfile.TemporaryDirectory() as folder:
        home, cold, back, peers = (Path(folder) / name for name in ("home", "cold", "back", "peers"))
        peers.mkdir()
        _fill(home, key, count)
        archive_channel(home, CHANNEL, key, cold)
        if not verify_archives(cold, trust=trust).ok:
            raise AssertionError("the archives do not verify: the comparison would mean nothing")
        packed = sorted(cold.glob(f"*/*/{BLOCKS}"))
        segments = sorted((home / "ledger" / CHANNEL / "segments").iterdir())

        def ours_archive() -> int:
            to = Path(folder) / "fresh"
            archive_channel(home, CHANNEL, key, to)
            shutil.rmtree(to)
            return count

        def peer_archive() -> int:
            for path in segments:
                packer = zstandard.ZstdCompressor(
                    level=LEVEL, write_checksum=True, threads=THREADS
                ).compressobj()
                hasher = blake3()
                with path.open("rb", buffering=0) as source, (peers / "x").open("wb", buffering=0) as target:
                    while piece := source.read(PIECE_BYTES):
                        hasher.update(piece)
                        target.write(packer.compress(piece))
                    target.write(packer.flush())
                    os.fsync(target.fileno())
                hasher.digest()
                (peers / "x").unlink()  # ours makes new files, too
            return count

        def ours_restore() -> int:
            restore_channel(cold, CHANNEL, back, trust=trust)
            shutil.rmtree(back)
            return count

        def peer_restore() -> int:
            for path in packed:
                unpacker = zstandard.ZstdDecompressor().decompressobj()
                outer, inner = blake3(), blake3()
                with path.open("rb", buffering=0) as source, (peers / "x").open("wb", buffering=0) as target:
                    while piece := source.read(PIECE_BYTES):
                        outer.update(piece)
                        out = unpacker.decompress(piece)
                        inner.update(out)
                        target.write(out)
                    os.fsync(target.fileno())
                outer.digest(), inner.digest()
                (peers / "x").unlink()
            return count

        def ours_verify() -> int:
            if not verify_archives(cold, trust=trust).ok:
                raise AssertionError
            return count

        size = sum(path.stat().st_size for path in segments)
        note = (
            f"{count} envelopes, {size >> 20} MiB, {sum(path.stat().st_size for path in packed) >> 20} packed"
        )
        jobs = (
            ("archive: write", ours_archive, peer_archive, "read, hash and pack"),
            ("archive: verify", ours_verify, peer_restore, "read, hash and unpack"),
            ("archive: restore", ours_restore, peer_restore, "read, hash and unpack"),
        )
        return [
            result
            for job, ours, peer, name in jobs
            for result in compare(
                job,
                Contestant("ropewalk", ours),
                [Contestant(name, peer)],
                target=0.3,
                rounds=ROUNDS,
                unit="envelopes",
                note=note,
            )
        ]


def _fill(home: Path, key: SigningKey, count: int) -> None:
    """A channel as a busy writer leaves it."""
    create_channel(home, CHANNEL, "node", key.public)
    with SegmentWriter(home / "ledger" / CHANNEL) as writer:
        for block in sealed_blocks(key, CHANNEL, count):
            writer.append(block.height, block.lines())
        writer.sync()
    with open_channel(home, CHANNEL) as channel:
        channel.head()  # the index is there, as it is where somebody writes
