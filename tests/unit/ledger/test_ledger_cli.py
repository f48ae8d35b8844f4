"""The ledger commands, as other software calls them: names, keys, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.unit.ledger.attesting import attested, dsse
from tests.unit.ledger.calling import Answer, make
from tests.unit.ledger.making import ADA, NOON, changed, command, observed, resigned
from tests.waiting import ended

from ropewalk.kernel import jcs
from ropewalk.ledger.block.block import parse_record
from ropewalk.ledger.envelope.adapt import resign
from ropewalk.ledger.envelope.envelope import parse
from ropewalk.ledger.rules.policy import STRICT


def test_an_envelope_is_built_appended_read_proved_and_verified(ropewalk):
    one = make(ropewalk, "one.json", "--correlation-id", "c-1", kind="Command")
    answer = ropewalk("ledger", "append", "--channel", "audit", "--file", str(one), "--json")
    assert answer.code == 0 and 'created channel "audit"' in answer.err
    receipt = answer.json
    assert set(receipt) == {"envelope_id", "height", "index", "block_hash", "replayed"}
    assert (receipt["height"], receipt["index"], receipt["replayed"]) == (0, 0, False)

    again = ropewalk("ledger", "append", "--channel", "audit", "--file", str(one), "--json").json
    assert again == {**receipt, "replayed": True}

    two = make(ropewalk, "two.json", "--parent", receipt["envelope_id"], kind="Result")
    assert json.loads(two.read_text())["causality_chain"] == [receipt["envelope_id"], "c-1"]
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(two)).out.startswith(
        "ok  height=1"
    )

    read = ropewalk("ledger", "read", "--channel", "audit", "--json").json
    assert [block["height"] for block in read["blocks"]] == [0, 1]
    assert read["blocks"][0]["block_hash"] == receipt["block_hash"]
    assert read["blocks"][0]["envelopes"] == [json.loads(one.read_text())]
    only = ropewalk("ledger", "read", "--channel", "audit", "--from", "1", "--to", "1", "--json").json
    assert [block["height"] for block in only["blocks"]] == [1]
    assert ropewalk("ledger", "read", "--channel", "audit", "--from", "9", "--json").json == {"blocks": []}

    head = ropewalk("ledger", "head", "--channel", "audit", "--json").json
    assert head == {
        "channel": "audit",
        "height": 1,
        "block_hash": read["blocks"][1]["block_hash"],
        "envelopes": 2,
    }

    assert ropewalk("ledger", "prove", receipt["envelope_id"], "-o", "proof.json").code == 0
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    checked = ropewalk("verify", "proof.json", "--trust", "trust.json", "--json")
    assert checked.code == 0 and checked.json["ok"] and checked.json["entries"] == 1
    assert {step["status"] for step in checked.json["steps"]} == {"passed", "not_checked"}

    for more in ((), ("--deep",), ("--channel", "audit"), ("--channel", "audit", "--deep")):
        report = ropewalk("ledger", "verify", "--json", *more)
        assert report.code == 0 and report.json["ok"] and report.json["entries"] == 2


def test_a_tampered_proof_fails_with_5_and_what_is_no_proof_with_8(ropewalk):
    one = make(ropewalk)
    name = ropewalk("ledger", "append", "--channel", "audit", "--file", str(one), "--json").json[
        "envelope_id"
    ]
    ropewalk("ledger", "prove", name, "-o", "proof.json")
    proof = json.loads(Path("proof.json").read_text())
    proof["envelope"]["domain"] = "other"
    Path("bad.json").write_text(json.dumps(proof))
    assert ropewalk("verify", "bad.json", "--json").code == 5
    Path("none.json").write_text("{}")
    assert ropewalk("verify", "none.json").code == 8


def test_refusals_carry_the_verdict_and_their_exit_codes(ropewalk):
    def refused(raw: bytes, channel: str = "audit") -> tuple[int, dict[str, Any]]:
        Path("x.json").write_bytes(raw)
        answer = ropewalk("ledger", "append", "--channel", channel, "--file", "x.json", "--json")
        return answer.code, answer.json

    code, problem = refused(b'{"a":1,"a":2}')
    assert (code, problem["code"]) == (8, "InvalidJson")
    code, problem = refused(jcs.encode({**observed().value, "extra": 1}))
    assert (code, problem["code"]) == (8, "InvalidEnvelope")
    code, problem = refused(jcs.encode({**observed().value, "payload": 5}))
    assert (code, problem["rules"][0]["status"]) == (5, "failed")
    code, problem = refused(jcs.encode({**observed().value, "domain": "x"}))
    assert (code, problem["code"], problem["rules"][1]["status"]) == (5, "SigInvalid", "failed")
    code, problem = refused(changed(command("c"), correlation_id=None, causality_chain=None).raw)
    assert (code, problem["rules"][2]["status"]) == (5, "failed")
    code, problem = refused(observed(protocol_version="2.0.0").raw)
    assert (code, problem["rules"][3]["status"]) == (5, "failed")
    code, problem = refused(observed(event_class="Attestation").raw)
    assert (code, problem["rules"][4]["status"]) == (5, "failed")
    code, problem = refused(observed(confidentiality={"level": "restricted"}).raw)
    assert (code, problem["code"], problem["rules"][5]["status"]) == (6, "PolicyDenied", "failed")
    code, problem = refused(observed(integrity_proof={"type": "merkle", "proof": "AA=="}).raw)
    assert (code, problem["rules"][6]["status"]) == (5, "failed")
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", _file(command("c-1").raw)).code == 0
    code, problem = refused(command("c-1", payload=2).raw)
    assert (code, problem["code"], problem["rules"][7]["status"]) == (4, "Replayed", "failed")
    assert [rule["rule"] for rule in problem["rules"]] == list(range(1, 9))
    code, problem = refused(observed(timestamp="2999-01-01T00:00:00Z").raw)
    assert code == 8
    assert refused(observed().raw, channel="../x")[0] == 8


def _file(raw: bytes) -> str:
    Path("tmp.json").write_bytes(raw)
    return "tmp.json"


def lines_of(answer: Answer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.out.splitlines()]


def test_append_answers_lines_in_order(ropewalk):
    lines = [observed(1).raw, b"{", observed(2).raw, observed(1).raw, b"", b"", b" \r", b"["]
    Path("in.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    answer = ropewalk("ledger", "append", "--channel", "audit", "--file", "in.jsonl", "--jsonl", "--json")
    got = lines_of(answer)
    assert answer.code == 8 and len(got) == 5  # a blank line says nothing and gets no answer
    assert ["envelope_id" in one and "height" in one for one in got] == [True, False, True, True, False]
    assert [one["detail"].split(":")[0] for one in got if "detail" in one] == ["line 2", "line 8"]
    assert got[3]["replayed"] and not got[0]["replayed"]
    assert {one["height"] for one in got if "height" in one} == {0}


def test_stop_on_error_ends_at_the_first_refusal(ropewalk):
    lines = [observed(1).raw, jcs.encode({**observed(2).value, "payload": 0}), observed(3).raw]
    Path("in.jsonl").write_bytes(b"\n".join(lines))
    answer = ropewalk(
        "ledger", "append", "--channel", "audit", "--file", "in.jsonl", "--jsonl", "--stop-on-error", "--json"
    )
    assert answer.code == 5 and len(lines_of(answer)) == 2
    assert ropewalk("ledger", "head", "--channel", "audit", "--json").json["envelopes"] == 1


def test_a_receipt_is_verified_with_nothing_but_a_trust_file(ropewalk):
    one = make(ropewalk, "one.json")
    receipt = ropewalk("ledger", "append", "--channel", "audit", "--file", str(one), "--json").json
    other = make(ropewalk, "other.json", kind="Alert")
    assert ropewalk("ledger", "receipt", receipt["envelope_id"], "-o", "r.cose").code == 0
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    whole = ropewalk("verify", "r.cose", "--envelope", str(one), "--trust", "trust.json", "--json")
    assert (whole.code, [step["status"] for step in whole.json["steps"]]) == (0, ["passed"] * 3)
    assert ropewalk("verify", "r.cose", "--envelope", str(other), "--trust", "trust.json").code == 5
    assert "no key is trusted" in ropewalk("verify", "r.cose").out
    assert ropewalk("verify", "trust.json", "--envelope", str(one)).code == 2
    Path("r.cose").write_bytes(Path("r.cose").read_bytes()[:-9])
    assert ropewalk("verify", "r.cose", "--trust", "trust.json").code == 8


def test_a_coprocess_gets_each_receipt_before_it_sends_the_next_line(ropewalk, tmp_path):
    ropewalk("ledger", "create", "--channel", "audit")
    command = (Path(sys.executable).with_name("ropewalk"), "ledger", "append", "--channel", "audit")
    with ended(
        subprocess.Popen(
            [*command, "--file", "-", "--jsonl", "--json"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(os.environ),
        )
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        for number in range(5):
            process.stdin.write(observed(number).raw + b"\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["height"] == number
        process.stdin.close()
        assert process.wait() == 0


def test_a_channel_keeps_its_key_and_policy(ropewalk):
    Path("strict.json").write_text(ropewalk("ledger", "policy", "show").out)
    made = ropewalk("ledger", "create", "--channel", "strict", "--policy", "strict.json", "--json")
    assert made.code == 0 and made.json["policy_hash"] == STRICT.hash.hex()
    assert ropewalk("ledger", "create", "--channel", "strict").code == 4
    assert ropewalk("ledger", "policy", "hash", "--channel", "strict").out.strip() == STRICT.hash.hex()
    loose = observed(
        correlation_id="c", signed_fields=observed().signed_fields[:4] + observed().signed_fields[6:]
    )
    checked = ropewalk(
        "ledger", "policy", "check", "--channel", "strict", "--file", _file(loose.raw), "--json"
    )
    assert (
        checked.code == 6
        and checked.json["decision"] == "deny"
        and "not signed" in checked.json["explanation"]
    )
    refused = ropewalk("ledger", "append", "--channel", "strict", "--file", _file(loose.raw), "--json")
    assert refused.code == 6 and refused.json["decision"] == "deny"
    fine = ropewalk(
        "ledger", "policy", "check", "--channel", "strict", "--file", _file(observed().raw), "--json"
    )
    assert fine.code == 0 and fine.json["decision"] == "allow"
    trust = json.loads(ropewalk("ledger", "trust", "--channel", "strict").out)
    assert trust["policy_hash"] == STRICT.hash.hex() and len(trust["block_signers"]) == 1


def test_damage_stops_writing_not_reading(ropewalk, tmp_path):
    for number in range(3):
        ropewalk("ledger", "append", "--channel", "audit", "--file", _file(observed(number).raw))
    (segment,) = (tmp_path / "repo.git/ropewalk/ledger/audit/segments").iterdir()
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 2] ^= 1
    segment.write_bytes(raw)
    report = ropewalk("ledger", "verify", "--channel", "audit", "--json")
    assert report.code == 5
    (failed,) = [step for step in report.json["steps"] if step["status"] == "failed"]
    assert (failed["name"], failed["height"]) == ("storage", 1)
    assert ropewalk("ledger", "verify").code == 5
    whole = ropewalk("verify", "--json")
    assert whole.code == 5
    assert [s["name"] for s in whole.json["steps"] if s["status"] == "failed"] == ["ledger/audit:storage"]


def test_append_cuts_unacknowledged_torn_tail(ropewalk, tmp_path):
    for number in range(3):
        ropewalk("ledger", "append", "--channel", "audit", "--file", _file(observed(number).raw))
    (segment,) = (tmp_path / "repo.git/ropewalk/ledger/audit/segments").iterdir()
    whole = segment.read_bytes()
    segment.write_bytes(whole + whole[64:300])  # half a block that no receipt was given for
    answer = ropewalk("ledger", "append", "--channel", "audit", "--file", _file(observed(9).raw), "--json")
    assert answer.code == 5  # a record of height 0 behind block 2 is no torn tail
    segment.write_bytes(whole + bytes(300))
    assert ropewalk("ledger", "head", "--channel", "audit", "--json").json["height"] == 2
    answer = ropewalk("ledger", "append", "--channel", "audit", "--file", _file(observed(9).raw), "--json")
    assert answer.code == 0 and answer.json["height"] == 3
    assert "removed 300 incomplete bytes" in answer.err


def test_what_is_missing_is_3_and_what_is_empty_is_said(ropewalk):
    assert ropewalk("ledger", "read", "--channel", "none").code == 3
    assert ropewalk("ledger", "prove", "00" * 32, "-o", "p").code == 3
    assert ropewalk("ledger", "prove", "zz", "-o", "p").code == 8
    assert ropewalk("ledger", "append", "--channel", "a", "--file", "none.json").code == 3
    ropewalk("ledger", "create", "--channel", "audit")
    assert ropewalk("ledger", "head", "--channel", "audit", "--json").json["height"] is None
    assert ropewalk("ledger", "read", "--channel", "audit", "--json").json == {"blocks": []}
    assert ropewalk("ledger", "ls", "--json").json == {"channels": ["audit"]}


def test_heads_and_consistency_can_be_handed_to_others(ropewalk):
    for number in range(3):
        ropewalk("ledger", "append", "--channel", "audit", "--file", _file(observed(number).raw))
    note = ropewalk("ledger", "head", "--channel", "audit", "--note", "--host", "example.org").out
    assert note.splitlines()[:2] == ["example.org/audit", "3"]
    made = ropewalk("ledger", "consistency", "--channel", "audit", "--old", "1", "--new", "3", "-o", "c.json")
    assert (made.code, made.out) == (0, "ok  audit  1 blocks are the beginning of 3  c.json\n")
    alone = ropewalk("verify", "c.json", "--json")
    assert (alone.code, alone.json["verdict"], alone.json["ok"]) == (5, "untrusted", False)
    assert ropewalk("verify", "c.json", "--no-trust", "--json").json["ok"]
    assert ropewalk("ledger", "consistency", "--channel", "audit", "--old", "1", "--new", "9").code == 8


def test_overlong_line_refused_rest_answered(ropewalk):
    Path("in.jsonl").write_bytes(b"\n".join([observed(1).raw, b"x" * (9 << 20), observed(2).raw]) + b"\n")
    answer = ropewalk("ledger", "append", "--channel", "audit", "--file", "in.jsonl", "--jsonl", "--json")
    first, refused, last = lines_of(answer)
    assert answer.code == 8 and refused["code"] == "TooLarge"
    assert (first["index"], last["replayed"]) == (0, False)


def test_an_envelope_in_cbor_is_appended_under_the_id_it_has_in_json(ropewalk):
    when = ("--timestamp", "2024-11-01T12:00:00Z")
    name = make(ropewalk, "one.cbor", "--cbor", *when)
    assert name.read_bytes()[0] >> 5 == 5  # a map
    appended = ropewalk("ledger", "append", "--channel", "audit", "--file", str(name), "--json").json
    again = ropewalk(
        "ledger", "append", "--channel", "audit", "--file", str(make(ropewalk, "j", *when)), "--json"
    )
    assert again.json == {**appended, "replayed": True}
    assert ropewalk("ledger", "policy", "check", "--file", str(name)).code == 0
    Path("bad.cbor").write_bytes(b"\xbf\xff")
    refused = ropewalk("ledger", "append", "--channel", "audit", "--file", "bad.cbor", "--json")
    assert (refused.code, refused.json["code"]) == (8, "InvalidCbor")


def test_an_erased_payload_leaves_a_tombstone_its_hash_and_its_proof(ropewalk):
    name = make(ropewalk, "kept.json", "--keep")
    value = json.loads(name.read_bytes())
    payload_hash = value["payload_hash"]
    assert value["payload"] is None and value["payload_ref"]["locator"] == f"urn:blake3:{payload_hash}"
    receipt = ropewalk("ledger", "append", "--channel", "audit", "--file", str(name), "--json").json
    assert json.loads(ropewalk("ledger", "payload", "show", payload_hash).out) == {"n": 1}

    erase = ("ledger", "payload", "erase", payload_hash, "--channel", "audit", "--reason", "asked", "--json")
    erased = ropewalk(*erase).json
    assert (erased["payload_hash"], erased["reason"], erased["height"]) == (payload_hash, "asked", 1)
    gone = ropewalk("ledger", "payload", "show", payload_hash, "--json")
    assert (gone.code, gone.json["erased_at"]) == (3, erased["erased_at"])
    assert not list(Path("repo.git/ropewalk/payloads").glob("*.json"))  # the bytes are gone, not only hidden
    assert ropewalk(*erase).json == {**erased, "replayed": True}

    assert ropewalk("ledger", "prove", receipt["envelope_id"], "-o", "proof.json").code == 0
    assert ropewalk("verify", "proof.json", "--no-trust").code == 0
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    assert ropewalk("verify", "proof.json", "--trust", "trust.json").code == 0
    assert ropewalk("ledger", "verify", "--deep").code == 0
    [event] = ropewalk("ledger", "read", "--channel", "audit", "--from", "1", "--json").json["blocks"][0][
        "envelopes"
    ]
    assert event["event_type"] == "ledger.tombstone" and event["payload"]["payload_hash"] == payload_hash
    back = ropewalk(
        *("ledger", "envelope", "--channel", "audit", "--domain", "ops", "--class", "Observation"),
        *("--type", "t", "--payload", "body.json", "--key", "ada", "--keep", "-o", "again.json"),
    )
    assert back.code == 4


def test_a_payload_that_was_changed_or_never_kept_is_not_shown(ropewalk):
    payload_hash = json.loads(make(ropewalk, "kept.json", "--keep").read_bytes())["payload_hash"]
    Path(f"repo.git/ropewalk/payloads/{payload_hash}.json").write_bytes(b'{"n":2}')
    assert ropewalk("ledger", "payload", "show", payload_hash).code == 5
    assert ropewalk("ledger", "payload", "show", "0" * 64).code == 3
    assert ropewalk("ledger", "payload", "show", "../x").code == 8
    assert ropewalk("ledger", "payload", "erase", "0" * 64, "--channel", "audit").code == 3


def test_a_folder_instead_of_a_file_of_lines_is_not_found(ropewalk):
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", ".", "--jsonl").code == 3


def test_policy_check_judges_evidence_as_the_channel_would(ropewalk):
    rule = {"id": "r", "name": "n", "version": 1, "kind": "evidence_checked", "decision": "deny"}
    Path("policy.json").write_bytes(jcs.encode({"version": 1, "rules": [rule]}))
    assert ropewalk("ledger", "create", "--channel", "built", "--policy", "policy.json").code == 0
    Path("true.json").write_bytes(attested(dsse(ADA), "slsa.v1").raw)
    check = ("ledger", "policy", "check", "--file", "true.json", "--channel", "built")
    append = ("ledger", "append", "--channel", "built", "--file", "true.json")
    assert (ropewalk(*check).code, ropewalk(*append).code) == (6, 6)
    config = {"version": 1, "keys": [ADA.public.to_json()], "builders": ["https://builder.example/v1"]}
    Path("repo.git/ropewalk/ledger/built/evidence.json").write_text(json.dumps(config))
    assert (ropewalk(*check).code, ropewalk(*append).code) == (0, 0)


def test_what_is_refused_makes_no_channel(ropewalk):
    lone = changed(observed(1), event_class="Result", correlation_id="c", causality_chain=["c"])
    forged = dict(observed(2).value, payload={"n": 3})
    late = observed(4, timestamp="2999-01-01T00:00:00Z")
    for number, raw in enumerate((lone.raw, jcs.encode(forged), late.raw)):
        Path("bad.json").write_bytes(raw)
        answer = ropewalk("ledger", "append", "--channel", "new", "--file", "bad.json")
        assert answer.code in (5, 8) and "created channel" not in answer.err, number
    assert ropewalk("ledger", "ls", "--json").json["channels"] == []
    Path("bad.jsonl").write_bytes(lone.raw + b"\n{\n")
    for more in ((), ("--stop-on-error",)):
        answer = ropewalk("ledger", "append", "--channel", "new", "--file", "bad.jsonl", "--jsonl", *more)
        assert answer.code == 5 and answer.out.count("error") == (1 if more else 2)
    assert ropewalk("ledger", "ls", "--json").json["channels"] == []
    assert not Path("repo.git/ropewalk/ledger/new").exists()


def test_refusals_are_answered_in_order(ropewalk):
    lone = changed(observed(1), event_class="Result", correlation_id="c", causality_chain=["c"])
    done = observed(1, event_class="Result", parent=command("c"))
    lines = [lone.raw, b"{", command("c").raw, done.raw]
    Path("mixed.jsonl").write_bytes(b"\n".join(lines))
    answer = ropewalk("ledger", "append", "--channel", "new", "--file", "mixed.jsonl", "--jsonl", "--json")
    said = [json.loads(line) for line in answer.out.splitlines()]
    assert answer.code == 5 and ["height" in each for each in said] == [False, False, True, True]


def test_result_takes_the_chain_of_its_command(ropewalk):
    """`ledger envelope --class Result` finds the Command by its correlation id."""
    ask = ("--class", "Command", "--correlation-id", "c-9")
    common = (
        "--channel",
        "audit",
        "--domain",
        "ops",
        "--type",
        "t",
        "--payload",
        "body.json",
        "--key",
        "ada",
    )
    Path("body.json").write_text("{}")
    for name, options in (("ask", ask), ("done", ("--class", "Result", "--correlation-id", "c-9"))):
        assert ropewalk("ledger", "envelope", *common, *options, "-o", f"{name}.json").code == 0
        answer = ropewalk("ledger", "append", "--channel", "audit", "--file", f"{name}.json", "--json")
        assert answer.code == 0, answer.out
    asked, done = (json.loads(Path(f"{name}.json").read_bytes()) for name in ("ask", "done"))
    assert asked["causality_chain"] == ["c-9"]
    assert done["causality_chain"] == [parse(Path("ask.json").read_bytes()).hex_id, "c-9"]


def test_append_of_an_event_asks_for_an_envelope(ropewalk):
    """A plain event is answered with what is expected and how to build it."""
    Path("event.json").write_text('{"what": "deployed", "who": "ada"}')
    plain = ropewalk("ledger", "append", "--channel", "audit", "--file", "event.json", "--json")
    Path("events.jsonl").write_text('{"what": "deployed"}\n')
    lines = ropewalk("ledger", "append", "--channel", "audit", "--file", "events.jsonl", "--jsonl", "--json")
    for answer in (plain, lines):
        problem = json.loads(answer.out)
        assert answer.code == 8 and problem["code"] == "InvalidEnvelope"
        assert "expected a signed envelope" in problem["detail"] and "what" in problem["detail"]
        assert "timestamp" not in problem["detail"]
        assert "ropewalk ledger envelope --channel" in problem["advice"]


def test_read_shows_the_header_of_each_block(ropewalk):
    one = make(ropewalk, "one.json")
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(one)).code == 0
    (block,) = json.loads(ropewalk("ledger", "read", "--channel", "audit", "--json").out)["blocks"]
    record = {name: block[name] for name in ("header", "signature", "signer")}
    parsed = parse_record(jcs.encode(record))
    assert parsed.hash.hex() == block["block_hash"] and parsed.header.envelope_count == 1
    assert block["header"]["channel"] == "audit" and len(block["envelopes"]) == 1


def test_envelope_is_written_in_a_supported_version(ropewalk):
    """After the sunset of 1.0.x `ledger envelope` writes the next version, which the channel takes."""
    assert ropewalk("ledger", "create", "--channel", "audit").code == 0
    sunset = ("--sunset", "2024-01-01T00:00:00Z")
    assert ropewalk("ledger", "lifecycle", "set", "1.0.x", "deprecated", *sunset).code == 0
    made = make(ropewalk, "one.json")
    assert json.loads(made.read_bytes())["protocol_version"] == "1.1.0"
    assert ropewalk("ledger", "append", "--channel", "audit", "--file", str(made)).code == 0


def test_verify_reads_a_tlog_receipt(ropewalk):
    one = make(ropewalk, "one.json")
    done = ropewalk("ledger", "append", "--channel", "audit", "--file", str(one), "--json").json
    receipt = ("ledger", "receipt", done["envelope_id"], "--form", "tlog", "-o", "r.tlog-proof")
    assert ropewalk(*receipt, "--host", "log.example").code == 0
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    check = ("verify", "r.tlog-proof", "--envelope", str(one), "--trust", "trust.json", "--json")
    answer = ropewalk(*check)
    assert answer.code == 0 and answer.json["ok"]
    statuses = {step["name"]: step["status"] for step in answer.json["steps"]}
    assert statuses["inclusion"] == statuses["log_signature"] == statuses["envelope"] == "passed"
    two = make(ropewalk, "two.json")
    assert ropewalk(*check[:3], str(two), *check[4:]).code == 5


def test_adapt_check_returns_the_signed_original(ropewalk):
    """A reader gets back the bytes that the author signed; a changed copy fails with 5 and writes nothing."""
    make(ropewalk)
    newer = resigned({**observed(1).value, "protocol_version": "1.2.0"})
    Path("newer.json").write_bytes(newer)
    adapted = ropewalk("ledger", "adapt", "--file", "newer.json", "--key", "ada", "-o", "adapted.json")
    assert adapted.code == 0 and "signed again" in adapted.err
    check = ("ledger", "adapt", "--check", "--file")
    done = ropewalk(*check, "adapted.json", "-o", "original.json", "--json")
    assert done.code == 0 and Path("original.json").read_bytes() == newer
    assert done.json["author"] == ADA.public.did() and done.json["payload"] == "passed"
    assert ropewalk(*check, "adapted.json").out.startswith(f"ok  {done.json['envelope_id']}  was ")
    assert ropewalk(*check, "adapted.json", "-o", "-").out == newer.decode() + "\n"

    wrong = json.loads(Path("adapted.json").read_text())
    Path("wrong.json").write_text(json.dumps({**wrong, "timestamp": "2024-12-01T12:00:00Z"}))
    refused = ropewalk(*check, "wrong.json", "-o", "none.json")
    assert refused.code == 5 and not Path("none.json").exists()
    Path("wrong.json").write_text(json.dumps({**wrong, "payload": {"n": 2}}))
    assert ropewalk(*check, "wrong.json").code == 5
    assert "carries no original" in ropewalk(*check, "one.json").err
    assert ropewalk("ledger", "adapt", "--file", "newer.json").code == 2
    assert ropewalk(*check, "adapted.json", "--timestamp", "2024-12-01T12:00:00Z").code == 2


def test_adapt_check_reports_a_detached_payload(ropewalk):
    """Its bytes are not there to be hashed, so the answer must not say `ok` alone."""
    away = observed(1, detached={"locator": "file:///x"})
    Path("adapted.json").write_bytes(resign(away.raw, ADA, NOON).envelope.raw)
    check = ("ledger", "adapt", "--check", "--file", "adapted.json")
    assert "\npayload: not checked, the payload is detached" in ropewalk(*check).out
    assert ropewalk(*check, "--json").json["payload"] == "not_checked"
    assert "payload: not checked" in ropewalk(*check, "-o", "-").err
