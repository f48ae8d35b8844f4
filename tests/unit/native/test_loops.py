"""The compiled loops do what Python does, byte for byte where bytes are names, and never more than they are asked."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
import zlib
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools import needs_that, skip_or_fail
from tests.unit.native.building import hook

from ropewalk import native
from ropewalk.errors import InvalidEnvelope, RopewalkError
from ropewalk.gitlog.core import planning
from ropewalk.gitlog.core.commit_template import EXAMPLE, PARENT
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.core.objects import GitSignature, Oid, object_id
from ropewalk.gitlog.core.planning import AppendContext, Plan, Tip, all_objects, plan
from ropewalk.gitlog.store import pack_writer
from ropewalk.gitlog.store.pack_index import read_index
from ropewalk.kernel import merkle
from ropewalk.kernel.merkle import LEDGER
from ropewalk.kernel.ulid import Ulid, make
from ropewalk.ledger.block.leaves import leaf_hashes, leaves_root
from ropewalk.native import hashing
from ropewalk.native import library as libraries
from ropewalk.native import object_batch as bales
from ropewalk.native.object_batch import (
    NUMBER,
    PREVIOUS,
    Field,
    HexOf,
    IdOf,
    ObjectBatch,
    column_of_bytes,
    compile_template,
)

ADA = GitSignature("Ada", "ada@example.test", 1_700_000_000)
NOW_MS = 1_700_000_000_123


needs_compiler = needs_that(any(map(shutil.which, ("cc", "gcc", "clang"))), "no C compiler on this machine")
needs_loops = needs_that(native.is_here(), "no C compiler when ropewalk was installed")


@needs_compiler
def test_where_there_is_a_c_compiler_the_loops_are_here():
    assert native.is_here()


# ---- plans ----


def decided(layout: Layout, drafts: list[Draft], tip: Tip, author: GitSignature, anchor: str | None) -> Plan:
    setting = AppendContext(NOW_MS, bytes(10), author, lambda _layout, _topic, _ulid: None)
    return plan(layout, "prod", tip, drafts, setting, anchor)


def told(made: Plan) -> object:
    outcomes = [
        (type(each), each.detail) if isinstance(each, RopewalkError) else each for each in made.outcomes
    ]
    return made.tip, list(made.objects), outcomes, made.places


def some_drafts(chance: random.Random, count: int, layout: Layout) -> list[Draft]:
    """Mostly plain events; some with a trailer, an author, an attachment or a ULID, some again, some refused."""
    drafts: list[Draft] = []
    for n in range(count):
        document = {"type": "made", "payload": {"n": n, "text": "é" * chance.randrange(40)}}
        kind = chance.randrange(24)
        if kind == 0 and layout is SHIPLOG:
            drafts.append(Draft(document, {"reason": "100 % sure"}))
        elif kind == 1:
            drafts.append(Draft(document, author=GitSignature("Bo", "bo@example.test", 5)))
        elif kind == 2 and layout is MESSAGES:
            drafts.append(Draft(document, attachments={"log.txt": b"same bytes"}))
        elif kind == 3:
            drafts.append(Draft({**document, "ulid": make(NOW_MS + n, n)}))
        elif kind == 4 and drafts:
            drafts.append(chance.choice(drafts))
        elif kind == 5:
            drafts.append(Draft({**document, "payload": chance.choice([5, {"n": 2**60}])}))
        elif kind == 6:
            drafts.append(Draft({**document, "ulid": "lower case"}))
        else:
            drafts.append(Draft(document))
    return drafts


@needs_loops
@pytest.mark.parametrize("layout", [SHIPLOG, MESSAGES], ids=lambda layout: layout.name)
def test_a_batch_is_decided_alike_by_the_loops_and_by_python(layout):
    chance = random.Random(11)
    woven = 0
    for _ in range(60):
        drafts = some_drafts(chance, chance.randrange(1, 120), layout)
        tip = chance.choice([Tip(), Tip(Oid("ab" * 20), Ulid("01HF7YAT000000000000000005"), 41)])
        author = chance.choice([ADA, GitSignature("100 %s", "%d@%", 7, "-0730"), GitSignature("é<\n", "", 0)])
        anchor = chance.choice([None, "cd" * 20])
        compiled = decided(layout, drafts, tip, author, anchor)
        with native.switched_off():
            by_python = decided(layout, drafts, tip, author, anchor)
        assert told(compiled) == told(by_python)
        assert isinstance(by_python.objects, list)
        woven += isinstance(compiled.objects, ObjectBatch)
    assert woven > 30


@needs_loops
@pytest.mark.parametrize("name", [PARENT, EXAMPLE.ulid, EXAMPLE.content_id, "7777777777777777"])
def test_an_author_named_like_an_example_gets_the_same_commits(name):
    author = GitSignature(name, "x@example.test", 9)
    drafts = [Draft({"type": "made", "payload": {"n": n}}) for n in range(40)]
    tip = Tip(Oid("ab" * 20), Ulid("01HF7YAT000000000000000005"), 41)
    compiled = decided(SHIPLOG, drafts, tip, author, None)
    with native.switched_off():
        assert told(compiled) == told(decided(SHIPLOG, drafts, tip, author, None))
    assert isinstance(compiled.objects, list)  # the template was not believed


def test_plain_event_is_refused_alone(monkeypatch):
    def refuse(*_args: object) -> bytes:
        raise InvalidEnvelope("no such trailer", where="", schema="shiplog/deployment_trailer")

    monkeypatch.setattr(planning, "default_trailer", refuse)
    unknown = GitSignature("Cy", "cy@example.test", 3)  # for whom no template was cut before
    plain, told_otherwise = Draft({"type": "made", "payload": {}}), Draft({"type": "made", "payload": {}}, {})
    tip = Tip(Oid("ab" * 20), Ulid("01HF7YAT000000000000000005"), 41)
    for count in (1, 40):
        made = decided(SHIPLOG, [*[plain] * count, told_otherwise, plain, told_otherwise], tip, unknown, None)
        refused = [isinstance(each, InvalidEnvelope) for each in made.outcomes]
        assert refused == [True] * count + [False, True, False]
        assert len(set(made.places.ulids)) == 2


@needs_loops
def test_plans_are_gathered_in_order_whatever_holds_their_objects():
    few = [Draft({"type": "made", "payload": {"n": n}}) for n in range(3)]
    many = [Draft({"type": "made", "payload": {"n": n}}) for n in range(90)]
    plans = [decided(SHIPLOG, drafts, Tip(), ADA, None) for drafts in (few, many, few, many)]
    listed = [each for made in plans for each in made.objects]
    assert list(all_objects(plans)) == listed
    with native.switched_off():
        assert all_objects(plans) == listed


# ---- packs ----

CHANCE = random.Random(5)
BODIES = [
    b"",
    b"x",
    b"ab",
    bytes(200_000),
    CHANCE.randbytes(5),
    CHANCE.randbytes(16_384),
    CHANCE.randbytes(200_001),
    b"abc" * 60_000,
    CHANCE.randbytes(40_000).hex().encode(),
    b"lorem ipsum " * 40,
    CHANCE.randbytes(65_535),
    CHANCE.randbytes(65_536),
    *(bytes(range(256)) * times for times in (1, 2, 64)),
    *(
        bytes(CHANCE.choices(range(letters), k=CHANCE.randrange(3_000)))
        for letters in (1, 2, 5, 90, 256) * 12
    ),
]


def named(body: bytes, kind: bales.Kind = "blob") -> bales.GitObject:
    return object_id(kind, body), kind, body


def unpacked(bale: ObjectBatch) -> list[bytes]:
    """What any inflater makes of a bale's pack; checksums and the count of bytes are checked on the way."""
    packed = bale.pack(b"head")
    assert packed is not None
    whole, begins, crcs = packed
    ends = [*begins, len(whole)][1:]
    bodies = []
    for begin, end, crc in zip(begins, ends, crcs, strict=True):
        assert zlib.crc32(whole[begin:end]) == crc
        at = begin
        while whole[at] & 0x80:
            at += 1
        inflate = zlib.decompressobj()
        bodies.append(inflate.decompress(bytes(whole[at + 1 : end])))
        assert inflate.eof
        assert not inflate.unused_data
    return bodies


@needs_loops
def test_zlib_reads_objects_stored_by_the_loops():
    kinds: list[bales.Kind] = ["blob", "tree", "commit", "tag"]
    bale = ObjectBatch(named(body, kinds[n % 4]) for n, body in enumerate(BODIES))
    assert unpacked(bale) == BODIES


@needs_loops
@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=600) | st.text(max_size=300).map(str.encode), max_size=12))
def test_zlib_reads_any_batch_stored_by_the_loops(bodies):
    assert unpacked(ObjectBatch(map(named, bodies))) == bodies


@needs_loops
def test_stored_objects_hardly_grow():
    for size in (0, 1, 7, 300, 5_000, 65_535, 65_536, 400_000):
        packed = ObjectBatch([named(CHANCE.randbytes(size))]).pack(b"")
        assert packed is not None
        assert len(packed[0]) <= size + 24 + 5 * (size // 65_535)


@needs_loops
def test_two_threads_pack_as_one_does(monkeypatch):
    bodies = [b'{"n":%d,"text":"%s"}' % (n, b"lorem ipsum " * 30) for n in range(2_000)]
    bale = ObjectBatch(map(named, bodies))
    assert sum(map(len, bodies)) > bales.ALONE_MAX
    assert unpacked(bale) == bodies
    monkeypatch.setattr(bales, "ALONE_MAX", 1 << 30)
    assert unpacked(bale) == bodies


@needs_loops
@pytest.mark.parametrize("trouble", [RuntimeError("can't start new thread"), MemoryError()])
def test_without_a_second_thread_one_packs_everything(trouble, monkeypatch):
    bodies = [b'{"n":%d,"text":"%s"}' % (n, b"lorem ipsum " * 30) for n in range(2_000)]
    bale = ObjectBatch(map(named, bodies))

    class Thread(threading.Thread):
        def start(self) -> None:
            if isinstance(trouble, RuntimeError):
                raise trouble
            super().start()

    def pack(self: ObjectBatch, first: int, last: int, head: bytes) -> bales.Packed | None:
        if isinstance(threading.current_thread(), Thread):
            raise trouble
        return alone(self, first, last, head)

    alone = ObjectBatch._pack
    monkeypatch.setattr(threading, "Thread", Thread)
    monkeypatch.setattr(ObjectBatch, "_pack", pack)
    assert unpacked(bale) == bodies


@needs_loops
def test_a_batch_is_packed_also_while_the_interpreter_ends():
    program = (
        "import atexit\n"
        "from ropewalk.native.object_batch import ObjectBatch\n"
        "bale = ObjectBatch(('%040x' % n, 'blob', b'lorem ipsum %d ' % n * 200) for n in range(500))\n"
        "atexit.register(lambda: print(len(bale.pack(b'')[1])))\n"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (answer.stdout, answer.stderr) == ("500\n", "")


@needs_loops
def test_git_finds_no_fault_in_a_pack_of_the_loops(tmp_path):
    chance = random.Random(3)
    drafts = some_drafts(chance, 300, SHIPLOG)
    made = decided(SHIPLOG, drafts, Tip(), ADA, None)
    assert isinstance(made.objects, ObjectBatch)
    objects = [*made.objects, *{oid: (oid, kind, raw) for oid, kind, raw in map(named, BODIES)}.values()]
    name, pack, index = pack_writer.build_pack(objects)
    assert hashlib.sha1(pack[:-20]).digest() == pack[-20:]
    with native.switched_off():
        by_python = pack_writer.build_pack(objects)
    assert {each.oid for each in read_index(index)} == {each.oid for each in read_index(by_python[2])}
    subprocess.run(["git", "init", "-q", "--bare", tmp_path], check=True)
    folder = tmp_path / "objects" / "pack"
    (folder / f"pack-{name}.pack").write_bytes(pack)
    (folder / f"pack-{name}.idx").write_bytes(index)
    (tmp_path / "refs/heads/log").write_text(f"{made.tip.commit}\n")
    subprocess.run(["git", "verify-pack", str(folder / f"pack-{name}.idx")], check=True)
    subprocess.run(["git", "fsck", "--full", "--strict"], cwd=tmp_path, check=True, capture_output=True)
    listing = "".join(f"{oid}\n" for oid, _, _ in objects).encode()
    answer = subprocess.run(
        ["git", "cat-file", "--batch"], cwd=tmp_path, input=listing, capture_output=True, check=True
    ).stdout
    for oid, kind, raw in objects:
        head = b"%s %s %d\n" % (oid.encode(), kind.encode(), len(raw))
        assert answer.startswith(head + raw + b"\n")
        answer = answer[len(head) + len(raw) + 1 :]


@needs_loops
def test_an_object_that_comes_twice_is_packed_once():
    bodies = [b"%d" % n for n in range(100)]
    _, _, index = pack_writer.build_pack([*map(named, bodies), *map(named, bodies)])
    assert sorted(each.oid.hex() for each in read_index(index)) == sorted(
        object_id("blob", b) for b in bodies
    )


@needs_loops
def test_an_index_that_needs_more_than_31_bits_is_left_to_python():
    bale = ObjectBatch([named(b"a"), named(b"b")])
    assert bale.columns(array("Q", [12, (1 << 31) - 1]), array("I", [0, 0])) is not None
    assert bale.columns(array("Q", [12, 1 << 31]), array("I", [0, 0])) is None


@needs_loops
def test_a_pack_of_gigabytes_is_made_once(monkeypatch):
    """Only its index is left to Python: places beyond 31 bits are written elsewhere in it."""
    objects = [named(b"%d" % n) for n in range(100)]
    plain, far = ObjectBatch.pack, 1 << 33
    monkeypatch.setattr(pack_writer, "store", None)  # Python packs no object

    def pack(self: ObjectBatch, head: bytes) -> bales.Packed | None:
        made = plain(self, head)
        assert made is not None
        made[1][99] += far
        return made

    near = {each.oid: each for each in read_index(pack_writer.build_pack(objects)[2])}
    monkeypatch.setattr(ObjectBatch, "pack", pack)
    name, whole, index = pack_writer.build_pack(objects)
    assert hashlib.sha1(whole[:-20]).hexdigest() == name
    moved = {each.oid: each.offset - near[each.oid].offset for each in read_index(index)}
    assert moved == {bytes.fromhex(oid): far if n == 99 else 0 for n, (oid, _, _) in enumerate(objects)}


@needs_loops
def test_loops_and_python_build_equal_packs():
    kinds: list[bales.Kind] = ["blob", "tree", "commit", "tag"]
    objects = list(
        {object_id(kinds[n % 4], body): named(body, kinds[n % 4]) for n, body in enumerate(BODIES)}.values()
    )
    assert len(objects) >= pack_writer.COMPILED_MIN
    compiled = pack_writer.build_pack(objects)
    with native.switched_off():
        assert pack_writer.build_pack(objects) == compiled


@needs_loops
def test_what_the_loops_refuse_is_believed_also_without_assertions():
    """`python -O` leaves out every assert; a pack that was given up must not be taken for a short one."""
    program = (
        "from ropewalk.native.object_batch import ObjectBatch, Field, column_of_bytes, compile_template\n"
        "class Refusing:\n"
        "    def __getattr__(self, name): return getattr(loaded, name)\n"
        "    def ropewalk_pack(self, *_): return -1\n"
        "    def ropewalk_weave(self, *_): return -1\n"
        "bale = ObjectBatch([('00' * 20, 'blob', b'lorem ipsum')])\n"
        "loaded, bale._library = bale._library, Refusing()\n"
        "print(bale.pack(b'head'))\n"
        "try:\n"
        "    bale.weave(compile_template([('blob', [Field(0)])]), [column_of_bytes([b'a'])], 0, '0' * 40)\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["None", "a template does not fit its events"]


# ---- bales ----


@needs_loops
def test_a_bale_is_a_sequence_of_its_objects():
    objects = [named(b"a"), named(b"", "tree"), named(b"c", "commit"), named(b"d", "tag")]
    bale = ObjectBatch(objects[:2])
    bale.extend(ObjectBatch(objects[2:]))
    assert list(bale) == objects
    assert bale[-1] == objects[-1]
    assert bale[1:3] == objects[1:3]
    with pytest.raises(IndexError):
        bale[4]


@needs_loops
def test_a_pattern_says_what_objects_are_made_of():
    template = compile_template(
        [
            ("blob", [Field(0)]),
            ("tree", [b"100644 ", Field(1), b"\x00", IdOf(0)]),
            ("commit", [b"tree ", HexOf(1), b"\nparent ", PREVIOUS, b"\n#", NUMBER]),
        ]
    )
    bale = ObjectBatch([named(b"before")])
    firsts, lasts = bale.weave(
        template, [column_of_bytes([b"one", b""]), column_of_bytes([b"a", b"bb"])], 9, "0" * 40
    )
    expected = [named(b"before")]
    parent = "0" * 40
    for number, (body, name) in enumerate([(b"one", b"a"), (b"", b"bb")], 9):
        blob = named(body)
        tree = named(b"100644 %s\x00" % name + bytes.fromhex(blob[0]), "tree")
        commit = named(b"tree %s\nparent %s\n#%d" % (tree[0].encode(), parent.encode(), number), "commit")
        expected += [blob, tree, commit]
        parent = commit[0]
    assert list(bale) == expected
    assert firsts == [expected[1][0], expected[4][0]]
    assert lasts == [expected[3][0], expected[6][0]]


# ---- the library ----


@needs_compiler
def test_a_library_of_another_build_is_not_used(tmp_path, monkeypatch):
    other = tmp_path / "loops.lib"
    assert hook().build(other, "-O0", "-DNATIVE_VERSION=999", sources=libraries.FILE.parent)
    monkeypatch.setattr(libraries, "FILE", other)
    assert libraries.library.__wrapped__() is None
    monkeypatch.setattr(libraries, "FILE", tmp_path / "nothing.so")
    assert libraries.library.__wrapped__() is None
    (tmp_path / "text.so").write_text("no library")
    monkeypatch.setattr(libraries, "FILE", tmp_path / "text.so")
    assert libraries.library.__wrapped__() is None


@needs_compiler
@pytest.mark.parametrize("flags", [("-O0",), ("-O0", "-DPORTABLE")], ids=["instructions", "portable"])
def test_names_are_those_of_git_whatever_the_processor_can(flags, tmp_path, monkeypatch):
    monkeypatch.setattr(libraries, "FILE", tmp_path / "loops.lib")
    assert hook().build(libraries.FILE, *flags, sources=Path(bales.__file__).parent)
    loaded = libraries.library.__wrapped__()
    assert loaded is not None
    monkeypatch.setattr(bales, "library", lambda: loaded)
    bodies = [CHANCE.randbytes(size) for size in [*range(200), 4_096, 70_001]]
    woven = ObjectBatch()
    woven.weave(compile_template([("blob", [Field(0)])]), [column_of_bytes(bodies)], 0, "0" * 40)
    assert list(woven) == list(map(named, bodies))
    monkeypatch.setattr(hashing, "library", lambda: loaded)
    assert leaves_root(leaf_hashes(bodies)) == merkle.root(map(LEDGER.leaf, bodies))


@pytest.mark.slow
def test_wheel_is_pure_without_a_compiler(tmp_path: Path):
    root = Path(__file__).parents[3]
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(root / name, tmp_path / name)
    for name in ("ropewalk/native", "pyspark_ropewalk"):
        shutil.copytree(
            root / "src" / name, tmp_path / "src" / name, ignore=shutil.ignore_patterns("loops.lib")
        )
    shutil.copy(root / "src/ropewalk/__init__.py", tmp_path / "src/ropewalk/__init__.py")

    def wheel(compiler: str) -> str:
        out = tmp_path / compiler
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
        subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "CC": compiler}, check=True, capture_output=True
        )
        (made,) = out.iterdir()
        return made.name

    assert wheel("false").endswith("-py3-none-any.whl")
    assert not (tmp_path / "src/ropewalk/native/loops.lib").exists()
    if any(map(shutil.which, ("cc", "gcc", "clang"))):
        assert "-py3-none-any" not in wheel(next(filter(shutil.which, ("cc", "gcc", "clang"))))
        assert (tmp_path / "src/ropewalk/native/loops.lib").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_input_makes_the_loops_touch_what_is_not_theirs(tmp_path):
    """Chance templates, columns and objects against a library that watches its own memory."""
    sanitizer = _sanitizer()
    if sanitizer is None:
        skip_or_fail("no C compiler with an address sanitizer on this machine")
    watched = tmp_path / "loops.lib"
    flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    assert hook().build(watched, *flags, sources=libraries.FILE.parent)
    environment = {**os.environ, "LD_PRELOAD": sanitizer, "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-m", "tests.unit.native.watched", str(watched), "3000"]
    answer = subprocess.run(
        command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr[-4_000:]
    assert answer.stdout.startswith("3000 rounds")


def _sanitizer() -> str | None:
    compiler = next(filter(shutil.which, ("cc", "gcc")), None)
    if compiler is None:
        return None
    asked = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    path = Path(asked.stdout.strip())
    return str(path.resolve()) if path.is_absolute() else None
