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
    """One sentence for every pack whose bytes are not what they were."""
    indexes = {path.stem for path in folder.glob("pack-*.idx")}
    for pack in sorted(folder.glob("pack-*.pack")):
        if pack.stem not in indexes:
            continue  # without an index it is not read: a killed writer's, or one being removed
        try:
            reason = _damage(pack)
        except FileNotFoundError:
            continue  # rolled up meanwhile
        except (OSError, RopewalkError) as error:
            reason = str(error)
        if reason:
            yield f"{pack.name}: {reason}"
    for name in sorted(indexes - {path.stem for path in folder.glob("pack-*.pack")}):
        yield f"{name}.idx: its pack is missing"


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
