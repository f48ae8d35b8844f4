"""`ropewalk shiplog`, `messages`, `consumer`, `heads`, `verify` as other software calls them."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import LIMIT_S, ended

from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.kernel.digest import content_id

ULID = r"[0-7][0-9A-HJKMNP-TV-Z]{25}"
EVENT = b'{"type": "proposal.created", "payload": {"id": 7}}'


def append(log: Any, ns: str = "governance", raw: bytes = EVENT, *more: str) -> Any:
    return log("shiplog", "append", "--ns", ns, "--file", "-", "--json", *more, stdin=raw)


def test_the_three_commands_of_s0_answer_in_the_shape_printed_there(log, tmp_path):
    (tmp_path / "event.json").write_bytes(EVENT)
    first = log("shiplog", "append", "--ns", "governance", "--file", "event.json")
    assert re.fullmatch(
        rf"ok  commit=[0-9a-f]{{7}} content_id=blake3:[0-9a-f]{{4}}… ulid={ULID}\n", first.text
    )
    since = first.text.split("ulid=")[1].strip()
    later = [append(log).json["ulid"] for _ in range(3)]
    read = log("shiplog", "read", "--ns", "governance", "--since", since, "--limit", "2")
    lines = read.text.splitlines()
    assert [line.split("  ")[0] for line in lines] == later[:2]
    shape = (
        rf'({ULID})  blake3:[0-9a-f]{{4}}…  ([0-9a-f]{{7}})  (\{{"ulid":"\1","ns":"governance","type":.*\}})'
    )
    match = re.fullmatch(shape, lines[0])
    assert match
    assert json.loads(match[3])["payload"] == {"id": 7}
    done = log(
        "shiplog", "checkpoint", "set", "--group", "analytics", "--ns", "governance", "--commit", match[2]
    )
    assert done.text == f"ok  refs/gatos/consumers/analytics/governance -> {match[2]}\n"


def test_append_answers_with_the_keys_of_the_contract(log):
    answer = append(log).json
    assert set(answer) == {"ulid", "content_id", "commit", "ns", "replayed"}
    again = append(log, raw=json.dumps({**json.loads(EVENT), "ulid": answer["ulid"]}).encode())
    assert again.json == {**answer, "replayed": True}
    other = append(log, raw=b'{"type":"x","payload":{},"ulid":"%s"}' % answer["ulid"].encode())
    assert (other.code, other.json["code"]) == (4, "DigestMismatch")


@pytest.mark.parametrize(
    ("ns", "raw", "code", "name"),
    [
        ("demo", b"not json", 8, "InvalidJson"),
        ("demo", b'{"type":"a","type":"b","payload":{}}', 8, "InvalidJson"),
        ("demo", b'{"type":"a","payload":{"n":9007199254740993}}', 8, "InvalidJson"),
        ("demo", b'{"type":"a"}', 8, "InvalidEnvelope"),
        ("demo", b'{"type":"a","payload":{},"ulid":"01HF4Y9Q1SM8Q7K9DK2R4V5CXL"}', 8, "InvalidUlid"),
        ("a..b", EVENT, 8, "InvalidName"),
        ("../x", EVENT, 8, "InvalidName"),
        ("x.lock", EVENT, 8, "InvalidName"),
    ],
)
def test_bad_input_is_a_problem_with_its_name(log, ns, raw, code, name):
    answer = append(log, ns, raw)
    assert (answer.code, answer.json["code"], answer.json["status"]) == (code, name, 400)
    assert name == "InvalidEnvelope" or answer.json["aliases"] == ["InvalidEnvelope"]  # S0 §5 has one name
    assert answer.json["detail"]
    assert answer.err == ""


def test_out_of_order_is_a_conflict(log):
    append(log)
    answer = append(log, raw=b'{"type":"a","payload":{},"ulid":"00000000000000000000000000"}')
    assert (answer.code, answer.json["code"], answer.json["status"]) == (4, "TemporalOrder", 409)
    assert answer.json["aliases"] == ["UlidOutOfOrder"]


def test_jsonl_answers_line_by_line_and_goes_on_after_a_refusal(log):
    lines = [EVENT, b"broken", b'{"type":"a"}', EVENT]
    answer = append(log, "governance", b"\n".join(lines) + b"\n", "--jsonl")
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row.get("code") for row in rows] == [None, "InvalidJson", "InvalidEnvelope", None]
    assert answer.code == 8
    assert len(log("shiplog", "read", "--ns", "governance", "--json").json["events"]) == 2


def test_a_reader_that_goes_away_ends_the_answers_and_not_the_recording(log, tmp_path):
    command = [str(Path(sys.executable).with_name("ropewalk")), "shiplog", "append", "--ns", "governance"]
    environment = {**os.environ, "ROPEWALK_REPO": str(tmp_path / "log.git")}
    with ended(
        subprocess.Popen(
            [*command, "--file", "-", "--jsonl"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(EVENT + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"ok")
        process.stdout.close()
        process.stdin.write((EVENT + b"\n") * 3_000)  # more than one batch
        process.stdin.close()
        assert process.wait() == 0
    with open_repository(tmp_path / "log.git") as opened:
        assert sum(1 for _ in opened.events("governance")) == 3_001


def test_jsonl_stops_when_told(log):
    answer = append(log, "governance", b"broken\n" + EVENT + b"\n", "--jsonl", "--stop-on-error")
    assert len(answer.text.splitlines()) == 1
    assert log("shiplog", "read", "--ns", "governance").code == 3


def test_nothing_behind_the_first_refusal_is_recorded_when_told_to_stop(log):
    lines = EVENT + b'\n{"payload":{}}\n' + EVENT + b"\n"
    answer = append(log, "governance", lines, "--jsonl", "--stop-on-error")
    assert [json.loads(line).get("code") for line in answer.text.splitlines()] == [None, "InvalidEnvelope"]
    assert answer.code == 8
    assert len(log("shiplog", "read", "--ns", "governance", "--json").json["events"]) == 1


def test_a_file_of_lines_that_is_not_there_is_not_found(log):
    answer = log("shiplog", "append", "--ns", "governance", "--file", "nowhere.jsonl", "--jsonl", "--json")
    assert (answer.code, answer.json["code"]) == (3, "NotFound")


@pytest.mark.parametrize("oid", ["z" * 40, "zz"])
def test_a_commit_that_is_no_object_id_is_invalid(log, oid):
    append(log)
    set_ = ("shiplog", "checkpoint", "set", "--group", "g", "--ns", "governance", "--commit", oid)
    assert log(*set_, "--json").code == 8


def test_reading_old_messages_again_moves_no_checkpoint(log):
    first, _, last = (
        log("messages", "publish", "--topic", "jobs", "--file", "-", "--json", stdin=EVENT).json["ulid"]
        for _ in range(3)
    )
    read = ("messages", "read", "--topic", "jobs", "--group", "workers", "--json")
    assert log(*read).json["next_since"] == last
    again = log(*read, "--since", first, "--limit", "1")
    assert (again.code, len(again.json["messages"])) == (0, 1)
    assert log("consumer", "ls", "--json").json["consumers"][0]["ulid"] == last


def test_a_checkpoint_does_not_pass_over_messages_that_were_not_read(log):
    ulids = [
        log("messages", "publish", "--topic", "jobs", "--file", "-", "--json", stdin=EVENT).json["ulid"]
        for _ in range(5)
    ]
    read = ("messages", "read", "--topic", "jobs", "--group", "workers", "--json")
    ahead = log(*read, "--since", ulids[1])  # of a group that has not begun
    assert [row["checkpoint_hint"] for row in ahead.json["messages"]] == [None] * 3
    assert "2 messages before these were not read" in ahead.err
    assert log("consumer", "ls", "--json").json["consumers"] == []
    assert log(*read, "--limit", "1").json["next_since"] == ulids[0]
    assert "stays" in log(*read, "--since", ulids[2]).err  # and of one that has
    assert log("consumer", "ls", "--json").json["consumers"][0]["ulid"] == ulids[0]
    rows = log(*read).json["messages"]
    assert [row["ulid"] for row in rows] == ulids[1:]
    assert rows[0]["checkpoint_hint"] == {"group": "workers", "topic": "jobs"}
    assert log("consumer", "ls", "--json").json["consumers"][0]["ulid"] == ulids[-1]


def test_paging_with_since_moves_the_checkpoint_page_by_page(log):
    ulids = [
        log("messages", "publish", "--topic", "jobs", "--file", "-", "--json", stdin=EVENT).json["ulid"]
        for _ in range(4)
    ]
    read = ("messages", "read", "--topic", "jobs", "--group", "workers", "--limit", "2", "--json")
    since = log(*read).json["next_since"]
    assert log(*read, "--since", since).json["next_since"] == ulids[-1]
    assert log("consumer", "ls", "--json").json["consumers"][0]["ulid"] == ulids[-1]


def test_verify_goes_on_past_a_torn_ref_and_ends_with_5(log, tmp_path):
    for ns in ("a", "b"):
        append(log, ns)
    (tmp_path / "log.git/refs/gatos/shiplog/a/head").write_text("torn")
    answer = log("verify", "--json")
    assert answer.code == 5
    verdicts = {step["name"]: step["status"] for step in answer.json["steps"]}
    assert (verdicts["shiplog/a:chain"], verdicts["shiplog/b:chain"]) == ("failed", "passed")
    listed = log("heads", "ls")
    assert listed.code == 5
    assert "refs/gatos/shiplog/b/head" in listed.text
    doctor = log("doctor", "--json")
    assert doctor.code == 7
    assert any("refs/gatos/shiplog/a/head" in check["detail"] for check in doctor.json["checks"])


def test_a_torn_checkpoint_is_listed_beside_the_others(log, tmp_path):
    append(log)
    with_commit = log("shiplog", "read", "--ns", "governance", "--json").json["events"][0]["commit"]
    log("shiplog", "checkpoint", "set", "--group", "good", "--ns", "governance", "--commit", with_commit)
    (tmp_path / "log.git/refs/gatos/consumers/bad").mkdir()
    (tmp_path / "log.git/refs/gatos/consumers/bad/governance").write_text("torn")
    rows = log("consumer", "ls", "--json").json["consumers"]
    assert [(row["group"], row["ulid"] is None) for row in rows] == [("bad", True), ("good", False)]
    assert log("consumer", "reset", "--group", "bad", "--ns", "governance", "--to", "now").code == 5


def test_reading_messages_does_not_take_a_shiplog_consumers_place(log):
    append(log, "jobs")
    commit = log("shiplog", "read", "--ns", "jobs", "--json").json["events"][0]["commit"]
    log("shiplog", "checkpoint", "set", "--group", "workers", "--ns", "jobs", "--commit", commit)
    log("messages", "publish", "--topic", "jobs", "--file", "-", stdin=EVENT)
    refused = log("messages", "read", "--topic", "jobs", "--group", "workers", "--json")
    assert refused.code == 4
    got = log("shiplog", "checkpoint", "get", "--group", "workers", "--ns", "jobs", "--json").json
    assert got["commit"] == commit


def test_read_and_tail_carry_envelopes_and_marks(log):
    a = append(log, "a").json
    b = append(log, "b").json
    page = log("shiplog", "read", "--ns", "a", "--json").json
    assert page["next_since"] == a["ulid"]
    assert page["events"][0]["envelope"]["ns"] == "a"
    tail = log("shiplog", "tail", "--ns", "a", "--ns", "b", "--json").json
    assert [event["ns"] for event in tail["events"]] == ["a", "b"]
    assert tail["watermarks"] == {"a": a["ulid"], "b": b["ulid"]}
    assert log("shiplog", "read", "--ns", "a", "--limit", "0", "--json").code == 8
    assert log("shiplog", "read", "--ns", "nope", "--json").json["code"] == "NotFound"


def test_what_a_stranger_wrote_forges_no_line_and_steers_no_terminal(log, tmp_path):
    steering = "x\n2026-01-01T00:00:00Z  forged \x1b[31m \x9b31m \u202e"
    trailer = tmp_path / "trailer.json"
    trailer.write_text(json.dumps({"what": {"service": steering}, "why": {"reason": steering}}))
    event = json.dumps({"type": steering, "payload": {"text": steering}}).encode()
    made = log(
        "shiplog", "append", "--ns", "a", "--file", "-", "--trailer", str(trailer), "--json", stdin=event
    )
    for command in (("read", "--ns", "a"), ("tail", "--ns", "a"), ("ls",), ("current",)):
        said = log("shiplog", *command)
        assert said.code == 0 and len(said.text.splitlines()) == 1, command
        assert said.text.rstrip("\n").isprintable(), command
    shown = log("shiplog", "show", made.json["ulid"]).text
    assert all(line.isprintable() and not line.startswith("2026-01-01") for line in shown.split("\n"))


@contextmanager
def following(tmp_path: Path, stdout: Any = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    words = ["shiplog", "tail", "--ns", "governance", "--follow", "--json"]
    environment = {**os.environ, "ROPEWALK_REPO": str(tmp_path / "log.git")}
    command = [str(Path(sys.executable).with_name("ropewalk")), *words]
    with ended(subprocess.Popen(command, stdout=stdout, env=environment)) as follower:
        yield follower


def test_follow_prints_what_comes(log, tmp_path):
    append(log)
    with following(tmp_path) as follower:
        assert follower.stdout is not None
        first = json.loads(follower.stdout.readline())
        fresh = append(log).json
        second = json.loads(follower.stdout.readline())
        follower.send_signal(2)
        assert follower.wait() == 130
    assert first["ulid"] < second["ulid"] == fresh["ulid"]
    assert second["watermarks"] == {"governance": fresh["ulid"]}


def test_follow_ends_when_nobody_reads_what_it_prints(log, tmp_path):
    append(log)
    with following(tmp_path) as follower:
        assert follower.stdout is not None
        follower.stdout.readline()
        follower.stdout.close()  # as `head -1` does; no further event comes
        assert follower.wait() == 0


def test_follow_ends_when_nobody_reads_the_socket_it_prints_into(log, tmp_path):
    """Some programs give their children sockets for pipes."""
    append(log)
    ours, theirs = socket.socketpair()
    with following(tmp_path, theirs) as follower:
        theirs.close()
        ours.settimeout(LIMIT_S)
        ours.shutdown(socket.SHUT_WR)  # who says no more still reads
        assert ours.recv(1)
        fresh = append(log).json["ulid"].encode()
        text = b""
        while fresh not in text:
            text += ours.recv(1 << 16)
        ours.close()
        assert follower.wait(LIMIT_S) == 0


def test_messages_follow_the_contract_of_s1(log):
    def publish() -> dict[str, Any]:
        answer: dict[str, Any] = log(
            "messages", "publish", "--topic", "jobs/a", "--file", "-", "--json", stdin=EVENT
        ).json
        return answer

    first, second = publish(), publish()
    assert set(first) == {"ulid", "content_id", "commit", "topic", "replayed"}
    page = log("messages", "read", "--topic", "jobs/a", "--json").json
    assert [row["ulid"] for row in page["messages"]] == [first["ulid"], second["ulid"]]
    row = page["messages"][0]
    assert set(row) == {"ulid", "commit", "content_id", "envelope_path", "canonical_json", "checkpoint_hint"}
    assert json.loads(base64.b64decode(row["canonical_json"]))["ulid"] == first["ulid"]
    after = log("messages", "read", "--topic", "jobs/a", "--since", first["ulid"], "--json").json["messages"]
    assert [row["ulid"] for row in after] == [second["ulid"]]
    for published in (first, second):
        one = log("messages", "read", "--topic", "jobs/a", "--group", "w", "--limit", "1", "--json")
        assert [row["ulid"] for row in one.json["messages"]] == [published["ulid"]]
    assert log("messages", "read", "--topic", "jobs/a", "--group", "w", "--json").json["messages"] == []
    unknown = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"
    assert (
        log("messages", "read", "--topic", "jobs/a", "--since", unknown, "--json").json["restarted"] is True
    )
    refused = log(
        "messages", "read", "--topic", "jobs/a", "--since", unknown, "--on-missing", "error", "--json"
    )
    assert refused.code == 3


@pytest.mark.parametrize(
    ("arguments", "code", "status", "exit_code"),
    [
        (("--topic", "nope"), "topic_not_found", 404, 3),
        (("--topic", "jobs", "--since", "L"), "invalid_ulid", 400, 8),
        (("--topic", "jobs", "--limit", "0"), "range_exceeded", 409, 8),
    ],
)
def test_messages_errors_have_the_names_of_s1(log, arguments, code, status, exit_code):
    log("messages", "publish", "--topic", "jobs", "--file", "-", stdin=EVENT)
    answer = log("messages", "read", *arguments, "--json")
    assert (answer.json["code"], answer.json["status"], answer.code) == (code, status, exit_code)


def test_consumers_lag_and_reset(log):
    ulids = [append(log).json["ulid"] for _ in range(3)]
    commit = log("shiplog", "read", "--ns", "governance", "--json").json["events"][0]["commit"]
    log("shiplog", "checkpoint", "set", "--group", "g", "--ns", "governance", "--commit", commit)
    row = {"group": "g", "ns": "governance", "ulid": ulids[0], "head_ulid": ulids[2], "behind": 2}
    assert log("consumer", "lag", "--json").json == {"consumers": [row]}
    listed = log("shiplog", "checkpoint", "ls", "--json").json["checkpoints"]
    assert listed == [
        {
            "group": "g",
            "ns": "governance",
            "ref": "refs/gatos/consumers/g/governance",
            "ulid": ulids[0],
            "commit": commit,
        }
    ]
    portable = log("shiplog", "checkpoint", "get", "--group", "g", "--ns", "governance", "--portable").json
    assert portable == {"ulid": ulids[0], "commit_oid": commit}
    reset = ("consumer", "reset", "--group", "g", "--ns", "governance", "--to")
    assert log(*reset, "now", "--dry-run", "--json").json["behind"] == 0
    assert log("consumer", "ls", "--json").json["consumers"][0]["ulid"] == ulids[0]
    log(*reset, "now")
    back = log(
        "shiplog", "checkpoint", "set", "--group", "g", "--ns", "governance", "--commit", commit, "--json"
    )
    assert (back.code, back.json["code"]) == (4, "TemporalOrder")
    log(*reset, "beginning")
    assert log("shiplog", "checkpoint", "get", "--group", "g", "--ns", "governance", "--json").code == 3


def test_run_ends_like_its_command_and_records_it(log):
    done = log(
        *(
            "shiplog",
            "run",
            "--ns",
            "deploy",
            "--service",
            "web",
            "--artifact",
            "web:1",
            "--reason",
            "canary",
        ),
        *("--ticket", "OPS-1", "--", "sh", "-c", "echo out; echo err >&2; exit 3"),
    )
    assert (done.code, done.text) == (3, "out\nerr\n")
    shown = log("shiplog", "show", "deploy", "--json").json
    assert shown["envelope"]["type"] == "deployment.failed"
    assert shown["envelope"]["payload"]["run"]["exit_code"] == 3
    assert shown["trailer"]["status"] == "failed"
    assert shown["trailer"]["why"] == {"reason": "canary", "ticket": "OPS-1"}
    assert shown["note"] == "out\nerr\n"
    quiet = log(
        "shiplog",
        "run",
        "--ns",
        "deploy",
        "--service",
        "web",
        "--artifact",
        "web:2",
        "--json",
        "--",
        "echo",
        "hi",
    )
    assert quiet.json["exit_code"] == 0
    assert quiet.err.startswith("hi\n")
    assert log("shiplog", "run", "--ns", "deploy", "--", "no-such-command-here").code == 127
    (row,) = log("shiplog", "current", "--json").json["current"]
    assert (row["service"], row["artifact"], row["status"]) == ("web", "web:2", "success")
    assert len(log("shiplog", "ls", "--since", "1h", "--json").json["events"]) == 3
    assert log("shiplog", "ls", "--since", "yesterdayish", "--json").code == 8


def test_run_returns_when_its_command_ends_whatever_it_left_running(log, tmp_path):
    script = (
        "mkfifo hold; (exec 3<hold; read line <&3) & echo $! > daemon; yes line | head -c 300000; echo done"
    )
    ran = log("shiplog", "run", "--ns", "deploy", "--json", "--", "sh", "-c", script)
    try:
        assert (ran.code, ran.json["exit_code"]) == (0, 0)
        assert "a process it started is still running" in ran.err
        note = log("shiplog", "show", "deploy", "--json").json["note"]
        assert (len(note), note[-10:]) == (300_005, "line\ndone\n")
    finally:
        os.kill(int((tmp_path / "daemon").read_text()), signal.SIGKILL)


def test_run_returns_though_something_writes_on_for_ever(log, tmp_path):
    script = "yes & echo $! > daemon; exit 3"
    ran = log("shiplog", "run", "--ns", "deploy", "--json", "--", "sh", "-c", script)
    assert (ran.code, ran.json["exit_code"]) == (3, 3)


@pytest.mark.parametrize(
    ("option", "code"), [(("--run-url", "no url"), 8), (("--reason", "ghp_" + "Zk3" * 12), 6)]
)
def test_run_refuses_what_it_could_not_record_before_it_runs_anything(log, tmp_path, option, code):
    ran = log("shiplog", "run", "--ns", "deploy", *option, "--json", "--", "touch", "ran")
    assert ran.code == code
    assert not (tmp_path / "ran").exists()


def test_run_refuses_a_rewritten_history_before_it_runs_anything(log, tmp_path):
    append(log, "deploy")
    append(log, "deploy")
    head = "refs/gatos/shiplog/deploy/head"
    subprocess.run(["git", "-C", str(tmp_path / "log.git"), "update-ref", head, f"{head}~1"], check=True)
    ran = log("shiplog", "run", "--ns", "deploy", "--json", "--", "touch", "ran")
    assert (ran.code, ran.json["code"]) == (5, "HistoryRewritten")
    assert not (tmp_path / "ran").exists()


def test_run_refuses_read_only_repository_first(log, tmp_path):
    locks = tmp_path / "log.git/ropewalk/locks"
    locks.write_text("in the way, for root may write everywhere")
    ran = log("shiplog", "run", "--ns", "deploy", "--json", "--", "touch", "ran")
    assert (ran.code, ran.json["code"]) == (7, "CapabilityUnavailable")
    assert not (tmp_path / "ran").exists()


def test_run_answers_as_a_shell_does_for_what_it_cannot_start(log, tmp_path):
    name = b"no-such-\xff".decode("utf-8", "surrogateescape")
    assert log("shiplog", "run", "--ns", "deploy", "--", name).code == 127
    assert "no-such-" in log("shiplog", "show", "deploy", "--json").json["note"]
    (tmp_path / "plain").write_text("")
    assert log("shiplog", "run", "--ns", "deploy", "--", "./plain").code == 126


def test_run_seals_its_output_behind_a_pointer_or_drops_it(log, tmp_path):
    log("key", "new", "vault", "--alg", "xchacha20poly1305")
    token = "ghp_" + "Zk3" * 12
    script = f"printf ghp_; printf {token[4:]}"
    sealed = log(
        "shiplog", "run", "--ns", "deploy", "--output", "seal", "--key", "vault", "--", "sh", "-c", script
    )
    assert (sealed.code, sealed.text) == (0, token)
    note = log("shiplog", "show", "deploy", "--json").json["note"]
    assert json.loads(note)["kind"] == "opaque_pointer"
    (tmp_path / "pointer.json").write_text(note)
    assert log("pointer", "open", "pointer.json").text == token
    dropped = log("shiplog", "run", "--ns", "deploy", "--output", "drop", "--json", "--", "echo", "hi")
    assert (dropped.code, dropped.json["log_attached"]) == (0, False)
    assert log("shiplog", "show", "deploy", "--json").json["note"] is None
    for wrong in (("--output", "seal"), ("--key", "vault"), ("--output", "seal", "--key", "nosuch")):
        assert log("shiplog", "run", "--ns", "deploy", *wrong, "--", "touch", "ran").code in (2, 3)
    assert not (tmp_path / "ran").exists()


def test_run_binds_its_output_to_the_event(log, tmp_path):
    ran = log("shiplog", "run", "--ns", "deploy", "--json", "--", "echo", "done").json
    shown = log("shiplog", "show", "deploy", "--json").json
    assert shown["envelope"]["refs"] == {"log": content_id(b"done\n")}
    git_dir = tmp_path / "log.git"
    git = ["git", f"--git-dir={git_dir}", "-c", "user.name=x", "-c", "user.email=x@y"]
    note = [*git, "notes", "--ref", "gatos/shiplog/logs", "add", "-f", "-m", "another story", ran["commit"]]
    subprocess.run(note, check=True, capture_output=True)
    refused = log("shiplog", "show", "deploy", "--json")
    assert (refused.code, refused.json["code"]) == (5, "DigestMismatch")


def test_run_records_arguments_that_are_no_text(log):
    ran = log(
        "shiplog", "run", "--ns", "deploy", "--json", "--", "true", b"\xff".decode("utf-8", "surrogateescape")
    )
    assert ran.code == 0
    shown = log("shiplog", "show", "deploy", "--json").json
    assert shown["envelope"]["payload"]["run"]["argv"] == ["true", "\ufffd"]


def test_run_says_that_the_event_stands_when_its_output_cannot_be_kept(log, tmp_path):
    append(log, "deploy")
    notes = tmp_path / "log.git/refs/notes/gatos/shiplog/logs"
    notes.parent.mkdir(parents=True)
    notes.write_text("torn")
    ran = log("shiplog", "run", "--ns", "deploy", "--json", "--", "echo", "hi")
    assert (ran.code, ran.json["log_attached"]) == (0, False)
    assert "recorded, but its output was NOT kept" in ran.err
    assert len(log("shiplog", "read", "--ns", "deploy", "--json").json["events"]) == 2


def test_what_does_not_exist_is_not_found(log, tmp_path):
    append(log)
    for arguments in (
        ("shiplog", "show", "nosuch"),
        ("shiplog", "show", "HEAD"),
        ("heads", "accept", "--ns", "nosuch"),
        ("shiplog", "anchor", "ls", "--ns", "nosuch"),
        ("messages", "publish", "--topic", "a", "--file", "nosuch.json"),
    ):
        answer = log(*arguments, "--json")
        assert (answer.code, answer.json["code"]) == (3, "NotFound"), arguments
    assert not (tmp_path / "log.git/ropewalk/seen/accepted.log").exists()


@pytest.mark.parametrize("signers", [b"null", b"7", b'{"a":1}', b"[1]"])
def test_a_trust_file_of_another_shape_is_invalid(log, tmp_path, signers):
    (tmp_path / "trust.json").write_bytes(b'{"block_signers":%s}' % signers)
    assert log("verify", "--trust", "trust.json", "--json").code == 8


def test_what_looks_like_a_secret_is_refused_unless_allowed(log):
    token = "ghp_" + "Zk3" * 12
    raw = json.dumps({"type": "t", "payload": {"token": token}}).encode()
    refused = append(log, "demo", raw)
    assert (refused.code, refused.json["code"]) == (6, "PolicyDenied")
    assert token not in refused.text
    assert append(log, "demo", raw, "--allow-secret").code == 0
    done = log("shiplog", "run", "--ns", "deploy", "--", "echo", "-n", "ghp_", "")
    assert done.code == 0
    leaky = log(
        "shiplog",
        "run",
        "--ns",
        "deploy",
        "--",
        "sh",
        "-c",
        "echo ghp_$(printf 'Zk3%.0s' 1 2 3 4 5 6 7 8 9 10 11 12)",
    )
    assert leaky.code == 0
    assert "output was NOT kept" in leaky.err
    shown = log("shiplog", "show", "deploy", "--json").json
    assert shown["note"] is None
    assert shown["envelope"]["payload"]["run"]["log_attached"] is False


def test_anchors_and_signed_heads_are_checked_with_their_key(log, ropewalk, tmp_path):
    append(log)
    log("key", "new", "ada")
    anchor = log(
        "shiplog", "anchor", "create", "--ns", "governance", "--label", "v1", "--sign", "ada", "--json"
    ).json
    assert set(anchor) == {"ulid", "topic", "head", "commit"}
    assert log("shiplog", "anchor", "ls", "--ns", "governance", "--json").json["anchors"][0]["label"] == "v1"
    signed = log("heads", "sign", "--ns", "governance", "--key", "ada", "--json").json
    (tmp_path / "keys.txt").write_text(signed["vkey"] + "\n")
    report = log("verify", "--ns", "governance", "--trust", "keys.txt", "--deep", "--json").json
    assert report["ok"]
    assert {step["status"] for step in report["steps"]} == {"passed"}


def test_verify_names_steps_and_refuses_a_rewritten_head(log, tmp_path):
    for _ in range(3):
        append(log)
    good = log("verify", "--json")
    assert good.code == 0
    assert set(good.json) == {"ok", "verdict", "steps", "entries"} and good.json["verdict"] == "passed"
    assert good.json["entries"] == 3
    first = log("shiplog", "read", "--ns", "governance", "--json").json["events"][0]["commit"]
    (tmp_path / "log.git/refs/gatos/shiplog/governance/head").write_text(first + "\n")
    for command in (("verify",), ("shiplog", "read", "--ns", "governance")):
        assert log(*command, "--json").code == 5
    assert append(log).json["code"] == "HistoryRewritten"
    assert log("heads", "accept", "--ns", "governance", "--json").json["head"] == first
    assert append(log).code == 0
    assert log("verify").code == 0


def test_verify_of_something_else_is_invalid(log, tmp_path):
    (tmp_path / "x.txt").write_text("hello")
    assert log("verify", "x.txt", "--json").code == 8
    assert log("verify", "missing", "--json").code == 3
    assert log("verify", "--ns", "nope", "--json").code == 3


def test_gatosd_is_the_same_command(tmp_path):
    import sys

    done = subprocess.run(
        [Path(sys.executable).with_name("gatosd"), "shiplog", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "append" in done.stdout
