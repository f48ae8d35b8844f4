"""Lines that the compiled loop calls canonical are so by the kernel; those of common form it does find."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tools import needs_that

from ropewalk import native
from ropewalk.errors import RopewalkError
from ropewalk.kernel import jcs
from ropewalk.ledger.block.leaves import surely_canonical
from ropewalk.native.library import library

pytestmark = needs_that(library(), "no C compiler built the loops")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def is_canonical(line: bytes) -> bool:
    try:
        return isinstance(jcs.parse_canonical(line), dict)
    except RopewalkError:
        return False


def found(line: bytes) -> bool:
    return surely_canonical(line + b"\n", 1) == b"\1"


@given(st.dictionaries(st.text(max_size=4), VALUES, max_size=4), st.data())
@settings(deadline=None, max_examples=80)
def test_what_the_loop_calls_canonical_is_so(value: dict[str, Any], data: st.DataObject):
    spelt = [jcs.encode(value), json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode()]
    line = bytearray(data.draw(st.sampled_from(spelt)))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(line)))
        new = st.sampled_from(
            [b"", b'"', b"0", b"-", b"\\", b"}", b"[", b",", b":", b" ", b"\xe9", b"1e5", b"."]
        )
        line[at : at + data.draw(st.integers(0, 2))] = data.draw(new)
    raw = bytes(line).replace(b"\n", b" ")
    assert is_canonical(raw) or not found(raw)


@pytest.mark.parametrize(
    ("line", "sure"),
    [
        (b"{}", True),
        (b'{"a":[],"b":{},"c":[1,-2,0,true,false,null,"x"]}', True),
        ('{"a":"é € 😀 \\n \\" \\\\ /"}'.encode(), True),
        (b'{"a":999999999999999,"a.":1,"b":2}', True),
        (b'{"a":1.5}', False),  # canonical, and left to Python
        (b"[1]", False),
        (b'{"a": 1}', False),
        (b'{"b":1,"a":2}', False),
        (b'{"a":1,"a":2}', False),
        (b'{"ab":1,"a":2}', False),
        (b'{"a":-0}', False),
        (b'{"a":01}', False),
        (b'{"a":9007199254740993}', False),
        (b'{"a":"\\u0041"}', False),
        (b'{"a":"\\/"}', False),
        (b'{"a":"\xed\xa0\x80"}', False),
        (b'{"a":"\xc0\x80"}', False),
        (b'{"a":"\xf4\x90\x80\x80"}', False),
        (b'{"a":"\x1f"}', False),
        (b'{"a":"x', False),
        (b'{"a":tru}', False),
        (b'{"a":1}}', False),
        (b'{"a":1,}', False),
        (b"", False),
    ],
)
def test_forms_the_loop_knows(line: bytes, sure: bool):
    assert found(line) == sure and (not sure or is_canonical(line))


def test_deep_lines_are_left_to_python():
    deep = [b'{"a":%b1%b}' % (b"[" * depth, b"]" * depth) for depth in (63, 64, 10_000)]
    assert [found(line) for line in deep] == [True, False, False]


def test_text_without_an_end_is_left_to_python():
    assert surely_canonical(b"{}\n{}", 2) == bytes(2)
    assert surely_canonical(b"{}\n{}\n", 2) == b"\1\1"
    assert surely_canonical(b"{}\n{}\n", 1) == bytes(1)
    with native.switched_off():
        assert surely_canonical(b"{}\n", 1) == bytes(1)
