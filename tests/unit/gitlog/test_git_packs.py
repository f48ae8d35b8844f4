"""Packs as we write them: any git inflates them, whichever library deflated, and indexes reach beyond two gigabytes."""

from __future__ import annotations

import importlib
import importlib.util
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator
from types import ModuleType

import pytest
from tests.tools import skip_or_fail

from ropewalk.gitlog.core.objects import object_id
from ropewalk.gitlog.store import deflate, pack_writer
from ropewalk.gitlog.store.pack_index import build_index, read_index
from ropewalk.gitlog.store.pack_writer import build_pack

CHANCE = random.Random(7)
TEXTS = {
    "nothing": b"",
    "one byte": b"x",
    "an envelope": b'{"id":"%s","text":"%s"}' % (CHANCE.randbytes(220).hex().encode(), b"lorem ipsum " * 36),
    "under a window": b"ab" * 2_047,
    "over a window": b"ab" * 2_049 + b"c",
    "chance": CHANCE.randbytes(1_000),
    "much chance": CHANCE.randbytes(300_000),
    "hex": CHANCE.randbytes(100_000).hex().encode(),
    "zeros": bytes(3_000_000),
}


@pytest.fixture(params=["isal", "zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module as it is where ISA-L has a wheel, and as it is where it has none."""
    with monkeypatch.context() as patch:
        if request.param == "zlib":
            patch.setitem(sys.modules, "isal", None)
        else:
            if importlib.util.find_spec("isal") is None:
                skip_or_fail("ISA-L has no wheel for this machine")
        yield importlib.reload(deflate)
    importlib.reload(deflate)


@pytest.mark.parametrize("raw", TEXTS.values(), ids=TEXTS)
def test_any_zlib_inflates_what_we_deflate_and_chance_hardly_grows(library, raw):
    packed = library.deflate(raw)
    assert zlib.decompress(packed) == raw
    assert len(packed) <= len(raw) + 16 + len(raw) // 1_000


def test_git_finds_no_fault_in_a_pack_of_either_library(library, monkeypatch, tmp_path):
    monkeypatch.setattr(pack_writer, "deflate", library.deflate)
    monkeypatch.setattr(pack_writer, "STORED_OBJECTS_MAX", 0)  # compressed at once, as a pack of many objects
    objects: list[tuple[str, pack_writer.Kind, bytes]] = [
        (object_id("blob", raw), "blob", raw) for raw in TEXTS.values()
    ]
    name, pack, index = build_pack([*objects, *objects])
    subprocess.run(["git", "init", "-q", "--bare", tmp_path], check=True)
    folder = tmp_path / "objects" / "pack"
    (folder / f"pack-{name}.pack").write_bytes(pack)
    (folder / f"pack-{name}.idx").write_bytes(index)
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "verify-pack", str(folder / f"pack-{name}.idx")], check=True)
    subprocess.run([*git, "fsck", "--full", "--strict", "--no-dangling"], check=True)
    for oid, _, raw in objects:
        assert subprocess.run([*git, "cat-file", "blob", oid], check=True, capture_output=True).stdout == raw


def _stream(pack: bytes | bytearray, index: bytes) -> bytes:
    (entry,) = read_index(index)
    start = next(at for at in range(entry.offset, len(pack)) if pack[at] < 0x80) + 1
    return bytes(pack[start:-20])


def test_only_large_packs_are_compressed_at_once(monkeypatch):
    objects: list[tuple[str, pack_writer.Kind, bytes]] = [
        (object_id("blob", TEXTS["zeros"]), "blob", TEXTS["zeros"])
    ]
    assert deflate.is_stored(_stream(*build_pack(objects)[1:]))
    monkeypatch.setattr(pack_writer, "STORED_OBJECTS_MAX", 0)
    compressed = _stream(*build_pack(objects)[1:])
    assert not deflate.is_stored(compressed)
    assert zlib.decompress(compressed) == TEXTS["zeros"]


@pytest.mark.parametrize("raw", TEXTS.values(), ids=TEXTS)
def test_compressed_entry_keeps_the_object(raw):
    head = b"\xb0\x80\x01"  # a blob of some size; only its length in bytes matters here
    stored = head + deflate.store(raw)
    entry = pack_writer.compressed_entry(stored)
    assert len(entry) <= len(stored)
    assert entry.startswith(head)
    assert zlib.decompress(entry[len(head) :]) == raw
    assert pack_writer.compressed_entry(entry) == entry


def test_compressed_entry_leaves_foreign_entries():
    bomb = zlib.compressobj(9)
    mixed = b"\x78\x01\x00\x01\x00\xfe\xffa" + (bomb.compress(bytes(9_999_999)) + bomb.flush())[2:]
    for stream in (b"", b"\x78", b"\x78\x01\x01\x05\x00\xfa\xffabc", mixed, deflate.store(b"x" * 999)[:-1]):
        assert pack_writer.compressed_entry(b"\x30" + stream) == b"\x30" + stream


def test_an_index_keeps_offsets_beyond_two_gigabytes():
    entries = [(bytes([n % 251]) * 20, n, 12 + n * (1 << 29)) for n in range(12)]
    assert list(read_index(build_index(reversed(entries), bytes(20)))) == sorted(entries)


def test_a_pack_of_nothing_has_an_index_of_nothing():
    assert list(read_index(build_pack([])[2])) == []
