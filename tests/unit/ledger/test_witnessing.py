"""The writer's side of witnesses: all are asked at once, a threshold decides, receipts and bundles carry the lines."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.ledger.calling import make
from tests.unit.ledger.heading import LOG, WITNESS, SmallLog
from tests.unit.ledger.witnesses import live_witness

from ropewalk.disk.key_files import load_signing
from ropewalk.errors import Invalid, InvalidKey, SigInvalid, Unavailable
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.key import SignatureType, Signer, Verifier
from ropewalk.kernel.note.ml_dsa import MlDsaSigningKey
from ropewalk.kernel.note.note import claimed_head, cosign_head, open_head
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.witnessed import witness_gate
from ropewalk.ledger.transparency.head_check import HeadTrust, verify_head
from ropewalk.ledger.transparency.witness_policy import (
    WitnessPolicy,
    cosignature_line,
    cosignatures,
    parse_witness_policy,
    signature_lines,
)
from ropewalk.ledger.transparency.witnessing import WitnessClient, WitnessedHead
from ropewalk.net.http_post import HttpAnswer

HOST = ("--host", "log.example")


@pytest.fixture
def append(ropewalk):
    """Append one new envelope to `audit`, with these options."""
    count = iter(range(1_000))

    def call(*more):
        Path("body.json").write_text(json.dumps({"n": next(count)}))
        make(ropewalk)
        return ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json", *more, "--json")

    assert call().code == 0
    return call


@pytest.fixture
def crowd(ropewalk, append, tmp_path):
    """Three witnesses, one of them with ML-DSA-44; `set_up` names them to the channel with a threshold."""
    with contextlib.ExitStack() as stack:
        found = [
            stack.enter_context(live_witness(tmp_path / f"w{number}", f"w{number}.example", secret=secret))
            for number, secret in enumerate((None, MlDsaSigningKey(b"w" * 32), None))
        ]

        def set_up(threshold, *more, known=3):
            done = ropewalk(
                *("ledger", "witness", "set", "--channel", "audit", *HOST, "--threshold", str(threshold)),
                *(word for each in found for word in ("--witness", each.option)),
                *more,
                "--json",
            )
            assert done.code == 0, done
            for each in found[:known]:
                each.witness.add(Verifier.from_text(done.json["vkey"]))
            return done.json["vkey"]

        yield set_up, found


def test_append_witnessed_gives_cosignatures(ropewalk, append, crowd):
    set_up, found = crowd
    vkey = set_up(3)
    done = append("--witnessed")
    assert done.code == 0
    assert [line.split(" ")[1] for line in sorted(done.json["cosignatures"])] == [
        "w0.example",
        "w1.example",
        "w2.example",
    ]
    Path("head.note").write_text(done.json["checkpoint"])
    for each in found:
        more = ("--witness", each.vkey.to_text(), "--threshold", "1")
        assert ropewalk("verify", "head.note", "--vkey", vkey, *more).code == 0
    assert append("--witnessed").code == 0, "with a proof from the size they have seen"
    assert {each.witness.log("log.example/audit").head.size for each in found} == {3}


def test_append_witnessed_below_threshold_exits_7(ropewalk, append, crowd):
    set_up, _ = crowd
    set_up(3, known=2)
    done = append("--witnessed")
    assert (done.code, done.json["cosignatures"], done.json["checkpoint"]) == (7, [], None)
    assert "w2.example: 404" in done.err and "2 of 3" in done.err
    assert (done.json["height"], ropewalk("ledger", "verify", "--channel", "audit").code) == (1, 0)
    set_up(2, known=2)
    assert append("--witnessed").code == 0


def test_append_lines_witnessed_together(ropewalk, append, crowd):
    set_up, _ = crowd
    set_up(2)
    lines = []
    for number in range(3):
        Path("body.json").write_text(json.dumps({"line": number}))
        lines.append(make(ropewalk).read_text().strip())
    Path("lines").write_text("\n".join([*lines, "{}"]) + "\n")
    done = ropewalk(
        "ledger", "append", "--channel", "audit", "--file", "lines", "--jsonl", "--witnessed", "--json"
    )
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert (done.code, [len(each.get("cosignatures", ())) >= 2 for each in answers]) == (
        8,
        [True, True, True, False],
    )


def test_append_without_witnesses_names_the_command(append):
    done = append("--witnessed")
    assert (done.code, "ledger witness set" in done.json["advice"]) == (3, True)


def test_witness_set_fail_closed_bounds_the_backlog(ropewalk, append, crowd):
    set_up, found = crowd
    set_up(1, "--fail", "closed", "--max-unwitnessed", "2", known=0)
    first = append()
    assert (first.code, first.json["cosignatures"]) == (7, []), "closed asks without --witnessed too"
    refused = append()
    assert (refused.code, refused.json["code"]) == (7, "CapabilityUnavailable")
    assert "2 blocks have no 1 cosignatures" in refused.json["detail"]
    assert ropewalk("ledger", "head", "--channel", "audit", "--json").json["height"] == 1
    set_up(1, "--fail", "closed", "--max-unwitnessed", "2", known=1)
    again = append()
    assert (again.code, len(again.json["cosignatures"])) == (0, 1), "it asks before it seals"
    assert found[0].witness.log("log.example/audit").head.size == 3


def test_witness_set_fail_open_appends_on(append, crowd):
    set_up, _ = crowd
    set_up(1, known=0)
    assert [append().code for _ in range(3)] == [0, 0, 0]


def test_witness_send_and_show(ropewalk, append, crowd):
    set_up, _ = crowd
    set_up(2)
    shown = ropewalk("ledger", "witness", "show", "--channel", "audit", "--json").json
    assert (shown["witnessed"], shown["unwitnessed"]) == (0, 1)
    sent = ropewalk("ledger", "witness", "send", "--channel", "audit", "--json")
    assert (sent.code, len(sent.json["cosignatures"])) == (0, 3)
    again = ropewalk("ledger", "witness", "send", "--channel", "audit", "--json")
    assert again.json["checkpoint"] == sent.json["checkpoint"], "nothing new: nothing is asked"
    shown = ropewalk("ledger", "witness", "show", "--channel", "audit", "--json").json
    assert (shown["witnessed"], shown["unwitnessed"]) == (1, 0)
    assert ropewalk("ledger", "witness", "set", "--channel", "audit", "--none").code == 0
    assert ropewalk("ledger", "witness", "send", "--channel", "audit").code == 3


def test_witnesses_replaced_or_raised_have_not_signed_yet(ropewalk, append, crowd, tmp_path):
    """A head kept from other witnesses covers no block: neither shown, nor for the bound of a closed channel."""
    set_up, found = crowd
    set_up(3)
    first = ("ledger", "witness", "set", "--channel", "audit", *HOST, "--witness", found[0].option)
    assert ropewalk(*first).code == 0
    assert append("--witnessed").code == 0

    def shown():
        return ropewalk("ledger", "witness", "show", "--channel", "audit", "--json").json["witnessed"]

    assert shown() == 2
    closed = ("--fail", "closed", "--max-unwitnessed", "2")
    other = ("ledger", "witness", "set", "--channel", "audit", *HOST, "--witness", found[1].option, *closed)
    assert ropewalk(*other).code == 0
    assert shown() == 0
    gate = witness_gate(tmp_path / "repo.git/ropewalk/ledger/audit")
    assert gate is not None
    with pytest.raises(Unavailable, match="2 blocks have no 1 cosignatures"):
        gate(2)
    assert ropewalk("ledger", "witness", "send", "--channel", "audit").code == 0
    assert shown() == 2
    set_up(3)
    assert shown() == 0, "one of three has signed"
    assert ropewalk("ledger", "witness", "send", "--channel", "audit").code == 0
    assert shown() == 2
    elsewhere = ("--host", "other.example", "--witness", found[0].option)
    assert ropewalk("ledger", "witness", "set", "--channel", "audit", *elsewhere).code == 0
    assert shown() == 0, "a head of another origin"


def test_bundles_and_receipts_carry_cosignatures(ropewalk, append, crowd):
    set_up, found = crowd
    set_up(2)
    envelope_id = append("--witnessed").json["envelope_id"]
    keys = [word for each in found for word in ("--witness", each.vkey.to_text())]
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    assert ropewalk("bundle", "export", "--channel", "audit", "-o", "audit.tar.zst").code == 0
    for threshold, code in (("2", 0), ("4", 5)):
        more = ("--trust", "trust.json", *keys, "--threshold", threshold)
        assert ropewalk("bundle", "verify", "audit.tar.zst", *more).code == code
    append()  # a newer block, without witnesses
    assert ropewalk("ledger", "receipt", envelope_id, "--form", "tlog", "-o", "r").code == 0
    for threshold, code in (("2", 0), ("4", 5)):
        done = ropewalk("verify", "r", "--trust", "trust.json", *keys, "--threshold", threshold)
        assert done.code == code, done
    assert ropewalk("ledger", "receipt", envelope_id, "-o", "c").code == 0
    assert ropewalk("verify", "c", "--trust", "trust.json", *keys).code == 2, "COSE has no cosignatures"
    done = ropewalk("bundle", "export", "--channel", "audit", "-o", "later.tar.zst", "--json")
    assert done.code == 0, "no cosigned head covers the newest block: no anchor"


def test_witness_ahead_of_the_channel_is_reported(ropewalk, append, crowd, tmp_path):
    set_up, _ = crowd
    set_up(1, known=1)
    folder = tmp_path / "repo.git/ropewalk/ledger/audit"

    def ahead(_url, _body):
        return HttpAnswer(409, "text/x.tlog.size", b"7\n")

    with open_channel(tmp_path / "repo.git/ropewalk", "audit") as reading:
        done = WitnessClient(reading, channel_secret(tmp_path), send=ahead).collect()
    assert not done.is_enough and "has cosigned 7 blocks, and the channel has only 1" in done.failures[0]
    assert not (folder / "witnessed.note").exists()


@pytest.mark.parametrize(
    "answer",
    [
        HttpAnswer(200, "text/plain", b""),
        HttpAnswer(200, "text/plain", b"\xff"),
        HttpAnswer(200, "text/plain", "\u2014 w0.example AAAAAAAA\n".encode()),
        HttpAnswer(409, "text/plain", b"1\n"),
        HttpAnswer(409, "text/x.tlog.size", b"9" * 300),
        HttpAnswer(302, "text/html", b"elsewhere"),
        HttpAnswer(500, "text/html", b"\x1b[2J"),
    ],
)
def test_witness_answers_that_count_for_nothing(append, crowd, tmp_path, answer):
    set_up, _ = crowd
    set_up(1)
    with open_channel(tmp_path / "repo.git/ropewalk", "audit") as reading:
        done = WitnessClient(reading, channel_secret(tmp_path), send=lambda _url, _body: answer).collect()
    assert (done.lines, len(done.failures)) == ((), 3)
    assert "\x1b" not in "".join(done.failures)
    with pytest.raises(Unavailable, match="0 of 1"):
        done.require()


def test_witnesses_are_asked_at_once(append, crowd, tmp_path):
    set_up, _ = crowd
    set_up(3)
    together = threading.Barrier(3)

    def send(_url, _body):
        together.wait(30)  # broken unless all three are asked before one answers
        return HttpAnswer(404, "", b"no")

    with open_channel(tmp_path / "repo.git/ropewalk", "audit") as reading:
        done = WitnessClient(reading, channel_secret(tmp_path), send=send).collect(wait_s=60)
    assert all("404" in failure for failure in done.failures) and not together.broken


def test_witness_that_never_answers_is_left(append, crowd, tmp_path):
    set_up, _ = crowd
    set_up(3)
    never = threading.Event()
    try:
        with open_channel(tmp_path / "repo.git/ropewalk", "audit") as reading:

            def send(_url, _body):
                never.wait()
                return HttpAnswer(404, "", b"")

            client = WitnessClient(reading, channel_secret(tmp_path), send=send)
            done = client.collect(wait_s=0.05)
    finally:
        never.set()
    assert len(done.failures) == 3 and "no answer within 0.05 s" in done.failures[0]


def channel_secret(tmp_path):
    return load_signing(tmp_path / "repo.git/ropewalk/keys", "node")


COUNTED = json.loads((Path(__file__).parents[3] / "vectors/witness/counted.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", COUNTED["cases"], ids=lambda case: case["name"])
def test_witnesses_count_as_in_the_vectors(case):
    given = case["input"]
    log, *named = map(Verifier.from_text, (given["log"], *given["witnesses"]))
    if "error" in case:
        with pytest.raises(SigInvalid):
            cosignatures(given["note"].encode(), log, named)
    else:
        assert len(cosignatures(given["note"].encode(), log, named)) == case["expect"]
    keys, least = HeadTrust(keys=(log,), witnesses=tuple(named)), case.get("expect") or 1
    passes = {n: verify_head(given["note"].encode(), replace(keys, threshold=n)) for n in (least, least + 1)}
    statuses = [{step.name: step.status for step in each.steps} for each in passes.values()]
    held = [each["log_signature"] == each["witnesses"] == "passed" for each in statuses]
    assert held == [bool(case.get("expect")), False]


def test_witness_line_of_the_log_itself_counts_for_nothing():
    note = SmallLog(3).head()
    own = Signer("w.example", LOG.key, SignatureType.COSIGNATURE)
    assert cosignatures(cosign_head(note, own, 1), LOG.verifier, [own.verifier]) == ()
    twice = Signer("two.example", WITNESS.key, SignatureType.COSIGNATURE)
    both = cosign_head(cosign_head(note, WITNESS, 1), twice, 1)
    assert len(cosignatures(both, LOG.verifier, [WITNESS.verifier, twice.verifier])) == 1


def test_two_keys_of_one_name_are_one_cosigner():
    newer = Signer(WITNESS.name, MlDsaSigningKey(b"w" * 32), SignatureType.ML_DSA_44)
    note = cosign_head(cosign_head(SmallLog(3).head(), WITNESS, 1), newer, 1)
    keys = [WITNESS.verifier, newer.verifier]
    assert len(cosignatures(note, LOG.verifier, keys)) == 1
    lines = signature_lines(note, keys)
    assert len(lines) == 2 and WitnessedHead(note, 3, lines, 1).is_enough
    with pytest.raises(Unavailable, match="1 of 2 cosignatures"):
        WitnessedHead(note, 3, lines, 2).require()
    pairs = tuple((f"http://{key.type}", key) for key in keys)
    assert WitnessPolicy("h", pairs, 1).threshold == 1
    with pytest.raises(Invalid, match="between 1 and 1 witnesses"):
        WitnessPolicy("h", pairs, 2)


def test_cosignature_line_takes_only_the_witness():
    note = SmallLog(3).head()
    other = Signer("w2.example", SigningKey.generate("ed25519", b"o" * 32), SignatureType.COSIGNATURE)
    answer = cosign_head(cosign_head(note, other, 1), WITNESS, 2).removeprefix(note)
    line = cosignature_line(note, answer, LOG.verifier, WITNESS.verifier)
    assert open_head(note + line, LOG.verifier, [WITNESS.verifier, other.verifier])[1].unverified == ()
    assert len(claimed_head(note + line)[1]) == 2
    with pytest.raises(SigInvalid, match="no cosignature"):
        cosignature_line(note, answer, LOG.verifier, replace(WITNESS.verifier, name="w3.example"))
    old = cosign_head(SmallLog(2).head(), WITNESS, 2).rpartition(b"\n\n")[2].split(b"\n")[1] + b"\n"
    with pytest.raises(SigInvalid):
        cosignature_line(note, old, LOG.verifier, WITNESS.verifier)


def test_witness_policy_refuses_what_weakens_it():
    pair = ("http://w", WITNESS.verifier)
    again = ("http://v", replace(WITNESS.verifier, name="v.example"))
    for wrong in (
        lambda: WitnessPolicy("h", (pair,), 2),
        lambda: WitnessPolicy("h", (pair,), 0),
        lambda: WitnessPolicy("h", (), 1),
        lambda: WitnessPolicy("h", (pair, again), 2),
        lambda: WitnessPolicy("h", (pair,), 1, 0),
        lambda: parse_witness_policy(b'{"version":1}'),
    ):
        with pytest.raises(Invalid):
            wrong()
    with pytest.raises(InvalidKey, match="type 4"):
        WitnessPolicy("h", (("http://w", LOG.verifier),), 1)
    policy = WitnessPolicy("h", (pair,), 1, 5)
    from ropewalk.kernel import jcs

    assert parse_witness_policy(jcs.encode(policy.to_json())) == policy


def test_witness_set_wants_urls(ropewalk, append):
    for pair, code in (("ftp://w=x", 2), ("http://w", 2), ("http://w=x", 8), ("http://w:99999=x", 2)):
        done = ropewalk("ledger", "witness", "set", "--channel", "audit", *HOST, "--witness", pair)
        assert done.code == code, (pair, done)
    assert ropewalk("ledger", "witness", "set", "--channel", "audit").code == 2
