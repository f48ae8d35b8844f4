"""Chance input for a library built with sanitizers: `python -m tests.unit.native.watched LIBRARY ROUNDS`."""

from __future__ import annotations

import ctypes
import random
import sys
import zlib
from array import array
from itertools import accumulate
from pathlib import Path

from ropewalk.kernel import merkle
from ropewalk.kernel.merkle import LEDGER
from ropewalk.ledger.block.leaves import leaf_hashes, leaves_root
from ropewalk.native import library as libraries
from ropewalk.native.object_batch import NUMBERS, Field, ObjectBatch, column_of_bytes, compile_template


def template(chance: random.Random) -> bytes:
    """Something that looks like a template, whole or torn."""
    code = bytearray()
    for _ in range(chance.randrange(12)):
        match chance.choice("OOLCIHPN?"):
            case "O":
                code += b"O" + bytes([chance.choice([0, 1, 2, 3, 4, 5, 255])])
            case "L":
                size = chance.randrange(20)
                code += (
                    b"L"
                    + (size + chance.choice([0, 0, 0, 1, 1 << 31])).to_bytes(4, sys.byteorder)
                    + bytes(size)
                )
            case "?":
                code += chance.randbytes(chance.randrange(4))
            case letter:
                code += letter.encode() + (b"" if letter in "PN" else bytes([chance.choice([0, 1, 2, 200])]))
    return bytes(code[: chance.randrange(len(code) + 1)] if chance.random() < 0.2 else code)


def weave(loaded: ctypes.CDLL, chance: random.Random) -> int:
    """Call the loop with buffers of exactly the sizes it is told."""
    events, columns, objects = chance.randrange(5), 2, chance.randrange(12)
    bodies = [chance.randbytes(40) for _ in range(columns)]
    ends = [array("Q", sorted(chance.randrange(41) for _ in range(events))) for _ in range(columns)]
    if events and chance.random() < 0.1:
        ends[0].reverse()
    room = chance.randrange(400)
    code = template(chance)
    raw = ctypes.create_string_buffer(room) if room else None
    kept = [(ctypes.c_uint64 * len(each))(*each) for each in ends]
    found: int = loaded.ropewalk_weave(
        ctypes.create_string_buffer(code, len(code)) if code else None,
        len(code),
        columns,
        (ctypes.c_char_p * columns)(*bodies),
        (ctypes.c_void_p * columns)(*(ctypes.addressof(each) for each in kept)),
        events,
        chance.choice([0, 7, 2**64 - 1]),
        bytes(20),
        raw,
        chance.choice([0, 0, 0, room, room + 1]),
        room,
        objects,
        (ctypes.c_uint64 * objects)() if objects else None,
        (ctypes.c_uint8 * (20 * objects))() if objects else None,
        (ctypes.c_uint8 * objects)() if objects else None,
    )
    return found


def pack(chance: random.Random) -> None:
    """Objects of every kind and texture, packed and inflated again."""
    bodies = []
    for _ in range(chance.randrange(6)):
        size = chance.choice(
            [chance.randrange(8), chance.randrange(200), chance.randrange(3_000), 16_384, 40_000]
        )
        bodies.append(bytes(chance.choices(range(chance.choice([1, 2, 3, 17, 100, 256])), k=size)))
    kinds = list(NUMBERS)
    bale = ObjectBatch((bytes([n] * 20).hex(), chance.choice(kinds), body) for n, body in enumerate(bodies))
    packed = bale.pack(b"")
    assert packed is not None
    whole, begins, crcs = packed
    for begin, body in zip(begins, bodies, strict=True):
        at = begin
        while whole[at] & 0x80:
            at += 1
        assert zlib.decompressobj().decompress(bytes(whole[at + 1 :])) == body
    assert bale.columns(begins, crcs) is not None


def nothing() -> None:
    """Objects without a byte, and no objects: buffers that lie nowhere."""
    empty, none = ObjectBatch(), ObjectBatch()
    empty.weave(
        compile_template([("blob", [Field(0)]), ("tree", [b""])]), [column_of_bytes([b""])], 0, "0" * 40
    )
    for bale in (empty, none):
        packed = bale.pack(b"")
        assert packed is not None
        whole, begins, crcs = packed
        assert len(begins) == len(bale)
        assert bale.columns(begins, crcs) is not None
        assert (len(whole) > 0) == (len(bale) > 0)


def hash_messages(chance: random.Random) -> None:
    """Messages of any length up to more than a chunk, in any number."""
    bodies = [chance.randbytes(chance.randrange(1_100)) for _ in range(chance.randrange(40))]
    assert leaves_root(leaf_hashes(bodies)) == merkle.root(map(LEDGER.leaf, bodies))


def read_lines(loaded: ctypes.CDLL, chance: random.Random) -> None:
    """Torn JSON in buffers of exactly its size, as lines and as envelopes of a template."""
    whole = b'{"a":"x\\n\xc3\xa9\xf0\x9f\x98\x80","b":[-1,0,{"c":null}],"d":true}'
    lines = [bytearray(whole[: chance.randrange(len(whole) + 1)]) for _ in range(chance.randrange(1, 6))]
    for line in lines:
        if line and chance.random() < 0.5:
            line[chance.randrange(len(line))] = chance.randrange(256)
    text = b"\n".join(line.replace(b"\n", b"") for line in lines) + chance.choice([b"", b"\n"])
    kept = ctypes.create_string_buffer(text, len(text)) if text else None
    loaded.ropewalk_canonical_lines(kept, len(text), 6, (ctypes.c_uint8 * 6)())
    parts = (b'{"p":', b'","s":"', b'","t":"')
    ends = array("Q", [len(parts[0]), len(parts[0]) + len(parts[1]), sum(map(len, parts))])
    whole = b"".join(
        (parts[0], b'[1,"x"],"payload_hash":"', b"0" * 64, parts[1], b"A" * 86 + b"==", parts[2])
    )
    envelope = (whole + b'2024-11-01T12:00:00.5Z"}')[: chance.choice([999, chance.randrange(300)])]
    moulds, signs = b"".join(parts), chance.randbytes(chance.choice([9, 1_100]))
    room = chance.choice([64 + 64 + 22 + len(signs), chance.randrange(1, 300)])
    loaded.ropewalk_cast(
        ctypes.create_string_buffer(envelope, len(envelope)) if envelope else None,
        (ctypes.c_uint64 * 1)(len(envelope)),
        1,
        ctypes.create_string_buffer(moulds, len(moulds)),
        (ctypes.c_uint64 * 3)(*ends),
        ctypes.create_string_buffer(signs, len(signs)),
        (ctypes.c_uint64 * 3)(3, 6, len(signs)),
        (ctypes.c_uint8 * 1)(chance.randrange(2)),
        1,
        (ctypes.c_int32 * 3)(),
        (ctypes.c_uint8 * room)(),
        room,
        (ctypes.c_uint64 * 1)(),
        (ctypes.c_uint8 * 32)(),
    )


def hash_states(loaded: ctypes.CDLL, chance: random.Random) -> None:
    """Torn states in buffers of exactly their size, with room for too few leaves and long values."""
    whole = b'{"a":{"b":"x\\n\\"","c":[1,{"d":"%b"}]},"e":{},"%b":[]}' % (
        b"v" * chance.choice([0, 900, 2_000]),
        b"n" * chance.choice([1, 900, 1_100]),
    )
    text = bytearray(whole[: chance.choice([len(whole), chance.randrange(1, len(whole))])])
    if chance.random() < 0.5:
        text[chance.randrange(len(text))] = chance.choice(b'{}[]",:\\0')
    rooms = [chance.randrange(3), chance.randrange(3), chance.choice([0, 2, 9])]
    loaded.ropewalk_state_leaves(
        ctypes.create_string_buffer(bytes(text), len(text)),
        len(text),
        ctypes.create_string_buffer(b"valueleaf", 9),
        5,
        4,
        ctypes.create_string_buffer(32 * rooms[0] or 1),
        rooms[0],
        (ctypes.c_uint64 * (2 * rooms[1]))(),
        rooms[1],
        (ctypes.c_uint8 * (32 * rooms[2]))(),
        rooms[2],
    )


def read_all(_message: int, _size: int, signed: int, size: int, key: int) -> int:
    """Stand in for libsodium: read all it is given."""
    return len(ctypes.string_at(signed, size) + ctypes.string_at(key, 32)) % 2


_pointer = ctypes.c_void_p
OPEN = ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _pointer, _pointer, ctypes.c_ulonglong, _pointer)(read_all)


def look_at_signatures(loaded: ctypes.CDLL, chance: random.Random) -> None:
    """Messages of any size, also below a signature, with and without a key."""
    sizes = [chance.choice([0, 31, 63, 64, 65, 200]) for _ in range(chance.randrange(1, 5))]
    ends, text = array("Q", accumulate(sizes)), chance.randbytes(sum(sizes))
    loaded.ropewalk_signed(
        OPEN,
        ctypes.create_string_buffer(text, len(text)) if text else None,
        (ctypes.c_uint64 * len(ends))(*ends),
        len(ends),
        (ctypes.c_uint8 * 64)(),
        2,
        (ctypes.c_int32 * len(ends))(*(chance.randrange(-1, 3) for _ in ends)),
        (ctypes.c_uint8 * 64)(),
        2,
        (ctypes.c_uint8 * len(ends))(),
    )


def main() -> None:
    libraries.FILE = Path(sys.argv[1])
    loaded = libraries.library()
    assert loaded is not None
    nothing()
    chance, rounds, woven = random.Random(17), int(sys.argv[2]), 0
    for n in range(rounds):
        woven += weave(loaded, chance) >= 0
        read_lines(loaded, chance)
        look_at_signatures(loaded, chance)
        hash_states(loaded, chance)
        if n % 20 == 0:
            pack(chance)
            hash_messages(chance)
    assert woven > rounds // 20, "nothing fitted: the templates are of no use"
    print(f"{rounds} rounds, {woven} fitted")


if __name__ == "__main__":
    main()
