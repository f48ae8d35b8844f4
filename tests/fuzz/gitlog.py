"""Parsers of gitlog: what stands in git objects, packs and their indexes."""

from __future__ import annotations

from functools import cache

from ropewalk.disk.index_files import IndexExtent
from ropewalk.disk.index_pages import IndexDamaged
from ropewalk.errors import Damaged
from ropewalk.gitlog.compat import entries, ssh_signatures
from ropewalk.gitlog.core import commit as gitcommit
from ropewalk.gitlog.core import envelope as gitenvelope
from ropewalk.gitlog.core import objects
from ropewalk.gitlog.privacy import pointer
from ropewalk.gitlog.store import pack_index, pack_writer
from ropewalk.gitlog.store.pack_reader import PackFolder
from tests.fuzz.offering import Parser, as_text, work_folder

__all__ = ["PARSERS"]


def _git_commit(raw: bytes) -> None:
    objects.parse_commit(raw)
    ssh_signatures.split_signature(raw)
    ssh_signatures.judge(raw, None, 0)


def _git_tree(raw: bytes) -> None:
    for each in objects.parse_tree(raw):
        assert len(each.oid) == 40


def _git_message(raw: bytes) -> None:
    gitcommit.parse_message(raw)


def _git_shiplog_entry(raw: bytes) -> None:
    entries.parse_entry(objects.Oid("0" * 40), raw)


def _roster(raw: bytes) -> None:
    ssh_signatures.parse_allowed_signers(as_text(raw))


def _document(raw: bytes) -> None:
    gitenvelope.parse_document(raw)


def _pointer(raw: bytes) -> None:
    pointer.parse_pointer(raw)


def _pack_index(raw: bytes) -> None:
    for entry in pack_index.read_index(raw):
        assert entry is not None


def _index_extent(raw: bytes) -> None:
    try:
        found = IndexExtent.parse(raw)
    except (IndexDamaged, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(str(error)) from None  # the others: text that is no extent, under its own checksum
    assert IndexExtent.parse(found.to_bytes()) == found


def _packed(index: bytes, pack: bytes, oids: tuple[str, ...]) -> None:
    """Objects through a folder of packs, where every byte of index and pack may be wrong."""
    folder = work_folder()
    (folder / "pack-0.idx").write_bytes(index)
    (folder / "pack-0.pack").write_bytes(pack)
    reader = PackFolder(folder)
    reader.refresh()
    for oid in oids:
        reader.resolve(oid[:6])
        reader.read(oid)


def _git_index(raw: bytes) -> None:
    _, pack, _, oids = _small_pack()
    _packed(raw, pack, oids)


def _git_pack(raw: bytes) -> None:
    _, _, index, oids = _small_pack()
    _packed(index, raw, oids)


@cache
def _small_pack() -> tuple[str, bytes, bytes, tuple[str, ...]]:
    bodies = [b"a log in git", b"a log in git, and more of it" * 20, b""]
    made = [(objects.object_id("blob", raw), "blob", raw) for raw in bodies]
    name, pack, index = pack_writer.build_pack(made)  # type: ignore[arg-type]
    return name, bytes(pack), index, tuple(oid for oid, _, _ in made)


def _catalogue() -> tuple[Parser, ...]:
    commit = (
        f"tree {'1' * 40}\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\n"
        f"Event-Id: ulid:01ARZ3NDEKTSV4RRFFQ69G5FAV\nContent-Id: blake3:{'a' * 64}\nNamespace: n\n\n---\n"
        '{"version":1}\n'
    ).encode()
    listed = [
        ("git_commit", _git_commit, (commit,)),
        ("git_tree", _git_tree, (b"100644 a\x00" + bytes(20),)),
        ("git_index_file", _pack_index, (_small_pack()[2],)),
        ("index_extent", _index_extent, (IndexExtent(bytes(8), bytes(16), b"state", 3).to_bytes(),)),
        ("git_index", _git_index, (_small_pack()[2],)),
        ("git_pack", _git_pack, (_small_pack()[1],)),
        ("commit_message", _git_message, (commit.split(b"\n\n", 1)[1],)),
        ("shiplog_entry", _git_shiplog_entry, (commit,)),
        (
            "allowed_signers",
            _roster,
            (b'a namespaces="git" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI' + b"A" * 43,),
        ),
        ("event_document", _document, (b'{"type":"a.b","payload":{}}',)),
        (
            "opaque_pointer",
            _pointer,
            (
                b'{"kind":"opaque_pointer","algo":"blake3","digest":"blake3:'
                + b"a" * 64
                + b'","location":"https://x.example/1"}',
            ),
        ),
    ]
    return tuple(Parser(name, take, samples) for name, take, samples in listed)


PARSERS = _catalogue()
