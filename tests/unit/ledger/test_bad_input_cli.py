"""Every kind of bad input the ledger must refuse, from the command line: the exit code, and words that say what."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.calling import Ropewalk, make
from tests.unit.ledger.making import P256, changed, command, observed, resigned

from ropewalk.disk.key_files import load_signing
from ropewalk.kernel import jcs
from ropewalk.ledger.block.block import Block, seal
from ropewalk.ledger.channel.channel import open_log
from ropewalk.ledger.channel.segments.writer import SegmentWriter
from ropewalk.ledger.envelope.envelope import to_cbor

P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
SMALL_ORDER = "01" + "00" * 31
LATE = "2999-01-01T00:00:00Z"


def high_s() -> bytes:
    value: dict[str, Any] = json.loads(observed(1, key=P256).raw)
    raw = b64decode(value["signature"]["sig"])
    s = P256_ORDER - int.from_bytes(raw[32:], "big")
    value["signature"]["sig"] = b64encode(raw[:32] + s.to_bytes(32, "big")).decode()
    return jcs.encode(value)


def with_members(**members: Any) -> bytes:
    return jcs.encode({**observed(1).value, **members})


def signing_only(*fields: str) -> bytes:
    value = {**observed(1).value}
    value["signature"] = {**value["signature"], "signed_fields": list(fields)}
    return resigned(value)


def chained(*chain: str, correlation_id: str = "c") -> bytes:
    return changed(command("c"), correlation_id=correlation_id, causality_chain=list(chain)).raw


ENVELOPES: dict[str, tuple[Callable[[], bytes], int, str]] = {
    "duplicate keys": (lambda: observed(1).raw.replace(b"{", b'{"domain":"x",', 1), 8, "domain"),
    "no JSON": (lambda: b"hello", 8, "unexpected"),
    "a byte order mark": (lambda: b"\xef\xbb\xbf" + observed(1).raw, 8, "byte order mark"),
    "trailing bytes": (lambda: observed(1).raw + b"{}", 8, ""),
    "a number beyond 2^53": (lambda: observed(1).raw.replace(b'"n":1', b'"n":9007199254740993'), 8, ""),
    "a wrong hash": (lambda: with_members(payload_hash="00" * 32), 5, "rule 1"),
    "another payload": (lambda: with_members(payload={"n": 2}), 5, "rule 1"),
    "a signature over nothing": (lambda: signing_only(), 8, "signed_fields"),
    "a signed field list shortened": (
        lambda: signing_only("protocol_version", "domain"),
        5,
        "not signed: event_class",
    ),
    "a field listed twice": (
        lambda: signing_only(*observed(1).value["signature"]["signed_fields"], "domain"),
        5,
        "listed twice",
    ),
    "a signature of somebody else": (lambda: with_members(domain="other"), 5, "rule 2"),
    "high S": (high_s, 5, "rule 2"),
    "a key of small order": (
        lambda: with_members(origin_identity={"identity_type": "ed25519", "public_key": SMALL_ORDER}),
        8,
        "small order",
    ),
    "a tail that is not the correlation id": (
        lambda: chained("a", "other"),
        5,
        "must end with the correlation id",
    ),
    "a cycle": (lambda: chained("a" * 64, "a" * 64, "c"), 5, "twice"),
    "a Result without its Command": (
        lambda: observed(event_class="Result", correlation_id="never").raw,
        5,
        "no Command",
    ),
    "a Command without correlation id": (lambda: observed(event_class="Command").raw, 5, "correlation id"),
    "restricted without a policy": (
        lambda: observed(1, confidentiality={"level": "restricted"}).raw,
        6,
        "restricted",
    ),
    "an unknown version": (lambda: observed(1, protocol_version="2.0.0").raw, 5, "2.0.0"),
    "an unknown class": (lambda: resigned({**observed(1).value, "event_class": "Rumour"}), 8, "event_class"),
    "a timestamp in the future": (lambda: observed(1, timestamp=LATE).raw, 8, "in the future"),
    "a timestamp with an offset": (
        lambda: with_members(timestamp="2024-11-01T12:00:00+01:00"),
        8,
        "timestamp",
    ),
    "an Attestation without evidence": (
        lambda: observed(event_class="Attestation").raw,
        5,
        "carries evidence",
    ),
    "an unknown member": (lambda: with_members(more=1), 8, "more"),
    "more than an envelope may hold": (lambda: with_members(payload={"x": "y" * (5 << 20)}), 8, ""),
    "a payload that must be detached": (lambda: with_members(payload={"x": "y" * (2 << 20)}), 8, "detached"),
    "CBOR of indefinite length": (lambda: b"\xbf" + to_cbor(observed(1))[1:] + b"\xff", 8, ""),
    "CBOR with unsorted keys": (lambda: unsorted_cbor(), 8, ""),
    "a proof that leads nowhere": (
        lambda: observed(1, integrity_proof={"type": "merkle", "proof": "AAAA"}).raw,
        5,
        "rule 7",
    ),
}


def unsorted_cbor() -> bytes:
    import cbor2

    value = cbor2.loads(to_cbor(observed(1)))
    return bytes(cbor2.dumps(dict(reversed(list(value.items())))))


@pytest.mark.parametrize("name", ENVELOPES)
def test_append_refuses(ropewalk: Ropewalk, name: str) -> None:
    raw, code, words = ENVELOPES[name]
    Path("bad.json").write_bytes(raw())
    assert ropewalk("ledger", "create", "--channel", "audit").code == 0
    answer = ropewalk("ledger", "append", "--channel", "audit", "--file", "bad.json", "--json")
    assert answer.code == code, answer.out
    assert words in answer.json["detail"], answer.json["detail"]
    plain = ropewalk("ledger", "append", "--channel", "audit", "--file", "bad.json")
    assert plain.code == code and plain.err.count("\n") >= 2, plain.err  # what is wrong, and what to do
    assert ropewalk("ledger", "head", "--channel", "audit", "--json").json["envelopes"] == 0


def test_append_refuses_a_second_command_and_takes_the_same_bytes_again(ropewalk: Ropewalk) -> None:
    for name, number in (("one.json", 1), ("two.json", 2)):
        Path(name).write_bytes(command("c", payload={"n": number}).raw)
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json").code == 0
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json", "--json").json["replayed"]
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", "two.json").code == 4


def test_append_takes_any_layout_and_stores_the_canonical_one(ropewalk: Ropewalk) -> None:
    Path("wide.json").write_text(json.dumps(observed(1).value, indent=4) + "\n")
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", "wide.json").code == 0
    segment = next(Path("repo.git/ropewalk/ledger/audit/segments").iterdir()).read_bytes()
    assert observed(1).raw in segment


def test_a_second_writer_is_told_who_writes(ropewalk: Ropewalk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropewalk.cli.ledger.channel.WRITER_WAIT_S", 0.0)
    one = make(ropewalk)
    assert ropewalk("ledger", "create", "--channel", "audit").code == 0
    with open_log(Path("repo.git/ropewalk"), "audit", node_key()):
        answer = ropewalk("ledger", "append", "--channel", "audit", "--file", str(one))
    assert answer.code == 7 and "being written by process" in answer.err


# --- what is stored ---------------------------------------------------------------------------------------------------


def node_key() -> Any:
    return load_signing(Path("repo.git/ropewalk/keys"), "node")


@pytest.fixture
def stored(ropewalk: Ropewalk) -> Ropewalk:
    """Three blocks of three envelopes each, a proof and a trust file."""
    for start in (0, 3, 6):
        Path("lines.jsonl").write_bytes(b"".join(observed(start + i).raw + b"\n" for i in range(3)))
        done = ropewalk("ledger", "append", "--channel", "audit", "--file", "lines.jsonl", "--jsonl")
        assert done.code == 0, done
    assert ropewalk("ledger", "prove", observed(4).hex_id, "-o", "proof.json").code == 0
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    return ropewalk


def blocks(ropewalk: Ropewalk) -> list[Block]:
    from ropewalk.ledger.channel.channel import open_channel

    with open_channel(Path("repo.git/ropewalk"), "audit") as channel:
        return list(channel.blocks())


def rewrite(lines: list[list[bytes]]) -> None:
    """Store these blocks instead, checksums and all, as somebody with the disk could."""
    folder = Path("repo.git/ropewalk/ledger/audit")
    for path in (*(folder / "segments").iterdir(), folder / "receipted", folder / "lock"):
        path.unlink()
    writer = SegmentWriter(folder)
    for height, each in enumerate(lines):
        writer.append(height, each)
    writer.sync()
    writer.close()


BENT: dict[str, Callable[[list[list[bytes]]], object]] = {
    "reordered": lambda blocks: blocks[1].__setitem__(slice(1, None), blocks[1][:0:-1]),
    "dropped": lambda blocks: blocks[1].pop(),
    "doubled": lambda blocks: blocks[1].append(blocks[1][-1]),
    "not canonical": lambda blocks: blocks[1].__setitem__(1, blocks[1][1].replace(b",", b", ", 1)),
    "taken from another block": lambda blocks: blocks[1].__setitem__(1, blocks[0][1]),
}


@pytest.mark.parametrize("name", BENT)
def test_envelopes_that_were_touched_on_disk_are_found(stored: Ropewalk, name: str) -> None:
    lines = [block.lines() for block in blocks(stored)]
    BENT[name](lines)
    rewrite(lines)
    answer = stored("ledger", "verify", "--channel", "audit", "--json")
    assert answer.code == 5
    assert [s.get("height") for s in answer.json["steps"] if s["status"] == "failed"] == [1]


def test_block_times_that_go_back_are_found(stored: Ropewalk) -> None:
    first, second, _ = blocks(stored)
    early = seal(
        node_key(),
        channel="audit",
        height=1,
        prev_block_hash=first.hash,
        envelopes=second.envelopes,
        timestamp_ns=first.header.timestamp_ns - 1,
    )
    rewrite([first.lines(), early.lines()])
    answer = stored("ledger", "verify", "--channel", "audit")
    assert answer.code == 5 and "earlier" in answer.out


HEADER = (
    *("protocol_version", "channel", "height", "prev_block_hash", "merkle_root", "timestamp"),
    *("origin_identity", "integrity_proof", "policy_hash", "envelope_count"),
)


@pytest.mark.parametrize("name", HEADER)
def test_an_edit_of_a_header_field_fails_the_proof(stored: Ropewalk, name: str) -> None:
    proof = json.loads(Path("proof.json").read_text())
    old = proof["block"]["header"][name]
    new: Any = {"protocol_version": 2, "channel": "other", "height": 2, "envelope_count": 4}.get(name)
    if new is None:
        new = {"timestamp": "1", "integrity_proof": "x", "policy_hash": "11" * 32}.get(name, "22" * 32)
    assert new != old
    proof["block"]["header"][name] = new
    Path("bent.json").write_text(json.dumps(proof))
    assert stored("verify", "bent.json", "--trust", "trust.json").code in (5, 8)


@pytest.mark.parametrize("member", ["index", "height", "path", "envelope_id", "envelope"])
def test_a_proof_with_something_else_in_it_fails(stored: Ropewalk, member: str) -> None:
    assert stored("verify", "proof.json", "--trust", "trust.json").code == 0
    proof = json.loads(Path("proof.json").read_text())
    proof[member] = {
        "index": 2,
        "height": 2,
        "path": proof["path"][::-1],
        "envelope_id": "00" * 32,
        "envelope": observed(5).value,
    }[member]
    Path("bent.json").write_text(json.dumps(proof))
    assert stored("verify", "bent.json", "--trust", "trust.json").code == 5


def test_the_last_envelope_does_not_count_twice(stored: Ropewalk) -> None:
    """Three leaves and the last one doubled must not have one root (the odd leaf of the original)."""
    lines = [block.lines() for block in blocks(stored)]
    value = json.loads(lines[1][0])
    value["header"]["envelope_count"] = 4
    lines[1] = [jcs.encode(value), *lines[1][1:], lines[1][-1]]
    rewrite(lines)
    assert stored("ledger", "verify", "--channel", "audit").code == 5


def test_verify_fails_for_segment_cut_anywhere(stored: Ropewalk) -> None:
    (segment,) = Path("repo.git/ropewalk/ledger/audit/segments").iterdir()
    whole = segment.read_bytes()
    for size in (0, 1, 63, 64, 100, len(whole) // 2, len(whole) - 1):
        segment.write_bytes(whole[:size])
        answer = stored("ledger", "verify", "--channel", "audit", "--json")
        assert answer.json["blocks"] < 3
        assert answer.code == 5
        deep = stored("ledger", "verify", "--channel", "audit", "--deep", "--json")
        failed = {s["name"] for s in deep.json["steps"] if s["status"] == "failed"}
        assert deep.code == 5 and {"storage", "receipts"} <= failed, deep.out
    segment.write_bytes(whole)
    assert stored("ledger", "verify", "--channel", "audit", "--deep").code == 0


def test_an_empty_or_spoilt_index_is_built_again(stored: Ropewalk) -> None:
    index = Path("repo.git/ropewalk/ledger/audit/index")
    for data in index.iterdir():
        for raw in (b"", b"rubbish" * 3000):
            data.write_bytes(raw)
            assert stored("ledger", "prove", observed(4).hex_id, "-o", "again.json").code == 0
            assert stored("ledger", "verify", "--channel", "audit", "--deep").code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("ledger", "head", "--channel", "nobody"), 3),
        (("ledger", "read", "--channel", "nobody"), 3),
        (("ledger", "verify", "--channel", "nobody"), 3),
        (("ledger", "create", "--channel", "../x"), 8),
        (("ledger", "create", "--channel", "audit"), 4),
        (("ledger", "prove", "zz", "-o", "p"), 8),
        (("ledger", "prove", "00" * 32, "-o", "p"), 3),
        (("ledger", "append", "--channel", "audit", "--file", "missing"), 3),
        (("ledger", "trust", "--channel", "nobody"), 3),
        (("ledger", "evidence", "show", "--channel", "nobody"), 3),
        (("ledger", "reindex", "--channel", "nobody"), 3),
        (("ledger", "replay", "--channel", "audit", "--reducer", "none"), 3),
        (("ledger", "replay", "--channel", "audit", "--reducer", "counts", "--to", "99"), 8),
        (("bundle", "export", "--channel", "audit", "--from", "2", "--to", "1", "-o", "b.tar.zst"), 8),
        (("bundle", "export", "--channel", "audit", "--to", "99", "-o", "b.tar.zst"), 8),
        (("bundle", "verify", "missing", "--trust", "trust.json"), 3),
        (("bundle", "verify", "proof.json", "--trust", "trust.json"), 8),
        (("bundle", "verify", "proof.json", "--trust", "proof.json"), 8),
        (("bundle", "compare", "proof.json", "proof.json"), 8),
        (("verify", "trust.json"), 8),
        (("ledger", "consistency", "--channel", "audit", "--old", "2", "--new", "9"), 8),
        (("ledger", "consistency", "--channel", "audit", "--old", "3", "--new", "1"), 8),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else str(value),
)
def test_what_cannot_be_done_is_refused_in_words(
    stored: Ropewalk, arguments: tuple[str, ...], code: int
) -> None:
    answer = stored(*arguments)
    assert answer.code == code, answer
    assert answer.err.startswith("error  "), answer.err
    assert "Traceback" not in answer.err
