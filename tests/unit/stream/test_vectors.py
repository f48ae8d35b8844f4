"""The cases any implementation of streams can be held to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropewalk import errors
from ropewalk.stream.core.connection import Connection
from ropewalk.stream.core.frames import RefUpdate, Sub, encode
from ropewalk.stream.core.patterns import parse_pattern
from ropewalk.stream.core.window import Window, WindowBounds

VECTORS = Path(__file__).parents[3] / "vectors" / "stream"


def cases(name: str) -> list[Any]:
    found = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["name"]) for case in found]


@pytest.mark.parametrize("case", cases("patterns"))
def test_patterns(case):
    given = case["input"]
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            parse_pattern(given["kind"], given["pattern"])
        return
    pattern = parse_pattern(given["kind"], given["pattern"])
    assert [name for name in given["names"] if pattern.matches(name)] == case["expect"]["matches"]


@pytest.mark.parametrize("case", cases("catch_up"))
def test_catch_up(case):
    given, expect = case["input"], case["expect"]
    window = Window("vector", given["base"], WindowBounds(given["frames_max"], given["age_ms_max"]))
    for time_ms in given["published_ms"]:
        window.publish(RefUpdate("refs/gatos/x", None, "8b1c"), time_ms)
    connection = Connection(window, now_ms=given["now_ms"])
    connection.receive(encode(Sub(("refs/gatos/x",), (), given["sinceSeq"])), given["now_ms"])
    said = [json.loads(text) for text in connection.take(given["now_ms"], 10_000)][1:]
    assert [frame["seq"] for frame in said if frame["kind"] == "ref.update"] == expect["seqs"]
    lost = [frame for frame in said if frame["kind"] == "error"]
    names = ("code", "missingSeq", "oldestSeq", "seq")
    assert [{name: frame[name] for name in names} for frame in lost] == (
        [expect["lost"]] if expect["lost"] else []
    )
