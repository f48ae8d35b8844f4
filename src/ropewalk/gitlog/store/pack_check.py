"""Check every byte of every pack against its checksums, for `verify --deep`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from ropewalk.disk.durable import open_file, read_file
from ropewalk.errors import RopewalkError
from ropewalk.gitlog.store.pack_index import read_index

CHUNK = 1 << 20


def damaged_packs(folder: Path) -> Iterator[str]:
    """Yield one sentence for every pack whose bytes are not what they were.

    A pack without its index, or an index without its pack, is not read: a writer was cut off, or the pack is being
    removed. If it held entries of a log, the log's chain is broken, and that is reported.
    """
    for pack in sorted(folder.glob("pack-*.pack")):
        if not pack.with_suffix(".idx").exists():
            continue
        try:
            reason = _damage(pack)
        except FileNotFoundError:
            continue  # rolled up meanwhile
        except (OSError, RopewalkError) as error:
            reason = str(error)
        if reason:
            yield f"{pack.name}: {reason}"


def _damage(pack: Path) -> str:
    index = read_index(read_file(pack.with_suffix(".idx")))
    digest = hashlib.sha1(usedforsecurity=False)
    with open_file(pack) as stream:
        held = b""
        while chunk := stream.read(CHUNK):
            held += chunk
            digest.update(held[:-20])
            held = held[-20:]
    if digest.digest() != held:
        return "its bytes do not have the checksum at its end"
    if index.pack_checksum != held:
        return "its index was made for another pack"
    return ""
