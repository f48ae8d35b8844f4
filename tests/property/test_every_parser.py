"""Every parser of the product under arbitrary and nearly right bytes; `make torture ONLY=fuzz` does it at length."""

from __future__ import annotations

import inspect
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz.parsers import PARSERS, Parser, offer
from tests.torture import fuzz

FUZZ = Path(__file__).parents[1] / "fuzz"
VECTORS = Path(__file__).parents[2] / "vectors" / "fuzz"
READING = re.compile(
    r"(dag_)?decode(_\w+)?|parse(_\w+)?|open_note|split_cid|read_(index|packed|watch)|from_(bytes|json)"
)
PACKAGES = (
    "kernel", "gitlog", "gossip", "ledger", "stream", "net", "disk", "pipeline", "server", "bridge"
)  # fmt: skip
TAKES = ("bytes", "str", "str | bytes", "object", "Path")
# Parsers that are reached through another one, or that turn texts of the command line and of settings into numbers.
WITHIN = {
    "decode_base64": "envelope",
    "parse_timestamp": "envelope",
    "parse_proof_line": "bundle",
    "parse_der": "nitro_document",
    "parse_pem": "evidence_trust",
    "parse_head": "segment",
    "parse_range": "range_proof",
    "Link.parse": "cid",
    "Frontier.from_bytes": "index_state",
    "Approval.from_json": "approval",
}
every = pytest.mark.parametrize("parser", PARSERS, ids=[parser.name for parser in PARSERS])


@every
def test_a_parser_takes_a_sample_of_its_own(parser: Parser) -> None:
    assert any(offer(parser, sample) for sample in parser.samples)


@every
def test_kept_inputs_get_their_verdicts(parser: Parser) -> None:
    """`python -m tests.torture.fuzz --keep` keeps a few small inputs that reached new code."""
    path = VECTORS / f"{parser.name}.json"
    kept = json.loads(path.read_text()) if path.exists() else {"taken": [], "refused": []}
    for verdict in ("taken", "refused"):
        for text in kept[verdict]:
            assert offer(parser, bytes.fromhex(text)) is (verdict == "taken"), text


def test_kept_inputs_and_executions_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest inputs of all runs are kept: once there were 24, no later one was."""
    monkeypatch.setattr(fuzz, "VECTORS", tmp_path)
    assert fuzz.kept_inputs("ulid")["executions"] == 0
    ulid = b"01ARZ3NDEKTSV4RRFFQ69G5FAV".hex()
    fuzz._keep("ulid", [ulid, *(f"{number:04x}" for number in range(fuzz.KEPT))], 1_000)
    fuzz._keep("ulid", ["01", "00", "000102"], 500)
    document = json.loads((tmp_path / "ulid.json").read_text())
    refused = ["00", "01", *(f"{number:04x}" for number in range(fuzz.KEPT - 2))]
    assert document == {"parser": "ulid", "executions": 1_500, "taken": [ulid], "refused": refused}


@every
@settings(deadline=None, max_examples=25)
@given(raw=st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused(parser: Parser, raw: bytes) -> None:
    offer(parser, raw)


@every
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_parsers_round_trip_or_refuse_samples(parser: Parser, data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from(parser.samples)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(raw) - 1)))
        what = data.draw(st.sampled_from(["flip", "drop", "double", "insert"]))
        if what == "flip" and raw:
            raw[at] = data.draw(st.integers(0, 255))
        elif what == "drop":
            del raw[at : at + data.draw(st.integers(1, 9))]
        elif what == "double":
            raw[at:at] = raw[at : at + data.draw(st.integers(1, 40))]
        else:
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=4))
    offer(parser, bytes(raw))


def test_no_parser_of_the_product_is_left_out() -> None:
    """Whatever is public, named as a parser and takes bytes or a text is called somewhere in `tests/fuzz`."""
    called = "".join(path.read_text() for path in FUZZ.glob("*.py"))
    missing = []
    for package in PACKAGES:
        root = import_module(f"ropewalk.{package}")
        for found in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
            for name, parse in _parsers(import_module(found.name)):
                words = str(next(iter(inspect.signature(parse).parameters.values())).annotation)
                takes = words in TAKES or (words == "Any" and name.endswith(".from_json"))
                if takes and not re.search(rf"\b{re.escape(name)}\(", called) and name not in WITHIN:
                    missing.append(f"{found.name}: {name}")
    assert not missing
    assert {parser.name for parser in PARSERS} >= set(WITHIN.values())


def _parsers(module: ModuleType) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield what a module defines under the name of a parser: functions, and class and static methods."""
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if READING.fullmatch(name) and inspect.isfunction(value):
            last = module.__name__.rpartition(".")[2]
            yield (name if "_" in name else f"{last}.{name}"), value
        for member, kept in vars(value).items() if inspect.isclass(value) else ():
            if READING.fullmatch(member) and isinstance(kept, classmethod | staticmethod):
                yield f"{name}.{member}", getattr(value, member)
