"""Reading packs ourselves: whole entries, deltas, large objects, and damage that is named."""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from binascii import crc32

import pytest

from ropewalk.errors import DigestMismatch
from ropewalk.gitlog.core.objects import object_id
from ropewalk.gitlog.store import pack_reader
from ropewalk.gitlog.store.pack_index import PackEntry, build_index
from ropewalk.gitlog.store.pack_reader import PackFolder
from ropewalk.gitlog.store.pack_writer import build_pack


def header(kind: int, size: int) -> bytes:
    byte, size = (kind << 4) | (size & 15), size >> 4
    out = bytearray()
    while size:
        out.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    return bytes([*out, byte])


def write(folder, entries: list[tuple[str, bytes]]) -> None:
    """A pack of ready entries: `(id, packed bytes)`."""
    body = struct.pack(">4sII", b"PACK", 2, len(entries))
    listed = []
    for oid, packed in entries:
        listed.append(PackEntry(bytes.fromhex(oid), crc32(packed), len(body)))
        body += packed
    checksum = hashlib.sha1(body).digest()
    (folder / f"pack-{checksum.hex()}.pack").write_bytes(body + checksum)
    (folder / f"pack-{checksum.hex()}.idx").write_bytes(build_index(listed, checksum))


def opened(folder) -> PackFolder:
    packs = PackFolder(folder)
    packs.refresh()
    return packs


BASE = b"the quick brown fox jumps over the lazy dog" * 3
TARGET = BASE[:20] + b"NEW" + BASE[20:]
DELTA = (
    bytes([len(BASE) & 0x7F | 0x80, len(BASE) >> 7, len(TARGET) & 0x7F | 0x80, len(TARGET) >> 7])
    + bytes([0x90, 20, 3])
    + b"NEW"
    + bytes([0x91, 20, len(BASE) - 20])
)


def test_objects_of_every_size_come_back(tmp_path):
    objects = [b"", b"a", b"b" * 4095, os.urandom(4096), os.urandom(70_000), b"z" * 1_000_000]
    _, pack, index = build_pack([(object_id("blob", raw), "blob", raw) for raw in objects])
    (tmp_path / "pack-x.pack").write_bytes(pack)
    (tmp_path / "pack-x.idx").write_bytes(index)
    packs = opened(tmp_path)
    for raw in objects:
        assert packs.read(object_id("blob", raw)) == ("blob", raw)
    assert packs.read("0" * 40) is None


@pytest.mark.parametrize("kind", ["offset", "reference"])
def test_deltas_are_applied(tmp_path, kind):
    base = header(3, len(BASE)) + zlib.compress(BASE)
    if kind == "offset":
        delta = header(6, len(DELTA)) + bytes([len(base)]) + zlib.compress(DELTA)
        assert len(base) < 128
    else:
        delta = header(7, len(DELTA)) + bytes.fromhex(object_id("blob", BASE)) + zlib.compress(DELTA)
    write(tmp_path, [(object_id("blob", BASE), base), (object_id("blob", TARGET), delta)])
    packs = opened(tmp_path)
    assert packs.read(object_id("blob", TARGET)) == ("blob", TARGET)
    assert packs.read(object_id("blob", TARGET)) == ("blob", TARGET)


def test_a_circle_of_deltas_ends(tmp_path):
    one, two = "1" * 40, "2" * 40
    write(
        tmp_path,
        [
            (one, header(7, len(DELTA)) + bytes.fromhex(two) + zlib.compress(DELTA)),
            (two, header(7, len(DELTA)) + bytes.fromhex(one) + zlib.compress(DELTA)),
        ],
    )
    with pytest.raises(DigestMismatch, match="circle"):
        opened(tmp_path).read(one)


@pytest.mark.parametrize(
    ("packed", "match"),
    [
        (header(6, 4) + b"\x7f" + zlib.compress(b"abcd"), "must lie in the pack"),
        (header(7, 4) + b"\x09" * 20 + zlib.compress(b"abcd"), "missing"),
        (header(5, 4) + zlib.compress(b"abcd"), "unknown kind"),
        (header(3, 9) + zlib.compress(b"abcd"), "inflate"),
        (header(3, 2) + zlib.compress(b"abcd"), "inflate"),
        (header(3, 4) + b"not zlib", "damaged"),
        (b"\xff" * 30, "header"),
    ],
)
def test_bad_entries_are_named(tmp_path, packed, match):
    write(tmp_path, [("1" * 40, packed)])
    with pytest.raises(DigestMismatch, match=match):
        opened(tmp_path).read("1" * 40)


def test_a_cut_index_is_refused(tmp_path):
    write(tmp_path, [(object_id("blob", b"x"), header(3, 1) + zlib.compress(b"x"))])
    (index,) = tmp_path.glob("*.idx")
    index.write_bytes(index.read_bytes()[:-8])
    with pytest.raises(DigestMismatch, match="index"):
        opened(tmp_path).read(object_id("blob", b"x"))


def test_short_names_are_resolved(tmp_path):
    raws = [str(n).encode() for n in range(50)]
    _, pack, index = build_pack([(object_id("blob", raw), "blob", raw) for raw in raws])
    (tmp_path / "pack-x.pack").write_bytes(pack)
    (tmp_path / "pack-x.idx").write_bytes(index)
    packs = opened(tmp_path)
    for raw in raws:
        assert packs.resolve(object_id("blob", raw)[:9]) == [object_id("blob", raw)]
    assert packs.resolve("ffffffffff") == []
    assert len(packs.resolve("")) == 2


def test_letting_old_packs_go_disturbs_nobody_who_reads_them(tmp_path, monkeypatch):
    monkeypatch.setattr(pack_reader, "OPEN_PACKS_MAX", 2)
    raws = [os.urandom(9_000) for _ in range(8)]
    for raw in raws:
        _, pack, index = build_pack([(object_id("blob", raw), "blob", raw)])
        name = hashlib.sha1(pack[:-20]).hexdigest()
        (tmp_path / f"pack-{name}.pack").write_bytes(pack)
        (tmp_path / f"pack-{name}.idx").write_bytes(index)
    packs = opened(tmp_path)
    wanted = bytes.fromhex(object_id("blob", raws[0]))
    found = packs._find(wanted)
    assert found is not None
    held, offset = found
    for raw in raws[1:]:  # pushes the first one out while somebody holds it
        assert packs.read(object_id("blob", raw)) == ("blob", raw)
    assert held.entry(offset)[1] == raws[0]
    assert sum(each.is_open for each in packs._packs.values()) <= 2
    assert packs.read(wanted.hex()) == ("blob", raws[0])
