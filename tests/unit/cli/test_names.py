"""Names that were mistyped: what is not there is said with what was probably meant; what is made new is said, too."""

from __future__ import annotations

import json

import pytest

EVENT = b'{"type":"note","payload":{"id":7}}'


def append(log, ns, raw=EVENT):
    answer = log("shiplog", "append", "--ns", ns, "--file", "-", "--json", stdin=raw)
    assert answer.code == 0, answer.err
    return answer


def publish(log, topic):
    answer = log("messages", "publish", "--topic", topic, "--file", "-", "--json", stdin=EVENT)
    assert answer.code == 0, answer.err
    return answer


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["ledgr"], "ledger"),
        (["shiplog", "apend"], "append"),
        (["shiplog", "curent"], "current"),
        (["stream", "porxy"], "proxy"),
        (["gossip", "snyc"], "sync"),
    ],
)
def test_a_mistyped_command_is_answered_with_the_one_that_is_like_it(ropewalk, words, meant):
    answer = ropewalk(*words)
    assert answer.code == 2
    assert f"Did you mean {meant}" in answer.err
    assert f"Did you mean {meant}" in ropewalk(*words, "--json").json["detail"]


def test_a_command_like_no_other_is_answered_without_a_guess(ropewalk):
    assert "Did you mean" not in ropewalk("wibble").err


def test_an_environment_no_event_names_is_not_found(log):
    append(log, "prod")
    for command in ("current", "ls"):
        answer = log("shiplog", command, "--env", "prdo", "--json")
        assert (answer.code, answer.json["code"]) == (3, "NotFound")
        assert answer.json["advice"] == "Did you mean prod?"
    far = log("shiplog", "current", "--env", "elsewhere")
    assert (far.code, far.out) == (3, b"") and "The environments are: prod" in far.err
    assert log("shiplog", "current", "--env", "prod", "--json").json == {"current": []}


def test_environments_are_those_of_deployments(log):
    append(log, "notes")
    assert log("shiplog", "run", "--ns", "web", "--service", "web", "--env", "prod", "--", "true").code == 0
    answer = log("shiplog", "current", "--env", "elsewhere")
    assert answer.code == 3 and "The environments are: prod\n" in answer.err


def test_in_an_empty_log_no_environment_is_wrong(log):
    answer = log("shiplog", "current", "--env", "prod", "--json")
    assert (answer.code, answer.json) == (0, {"current": []})


def test_a_quiet_environment_is_no_unknown_one(log):
    append(log, "prod")
    answer = log("shiplog", "ls", "--env", "prod", "--since", "2099-01-01", "--json")
    assert (answer.code, answer.json) == (0, {"events": []})


def test_a_topic_with_dots_is_answered_with_the_one_that_has_slashes(log):
    publish(log, "jobs/pending")
    answer = log("messages", "read", "--topic", "jobs.pending", "--json")
    assert (answer.code, answer.json["code"]) == (3, "topic_not_found")
    assert answer.json["advice"] == "Did you mean jobs/pending?"
    assert "separated by /" in log("messages", "read", "--topic", "mail.out", "--json").json["advice"]


def test_a_log_of_the_other_kind_is_pointed_to(log):
    append(log, "deploy")
    publish(log, "jobs/pending")
    assert "shiplog read --ns deploy" in log("messages", "read", "--topic", "deploy").err
    assert "Did you mean deploy?" in log("shiplog", "read", "--ns", "deplyo").err


def test_a_log_that_is_made_is_told_of_once_and_with_those_like_it(log):
    assert append(log, "prod").err == "made the namespace prod\n"
    assert append(log, "prod").err == ""
    assert append(log, "prdo").err == "made the namespace prdo; prod was there before\n"
    assert publish(log, "jobs").err == "made the topic jobs\n"
    lines = log(
        "messages", "publish", "--topic", "mail", "--file", "-", "--jsonl", stdin=EVENT + b"\n" + EVENT
    )
    assert lines.err == "made the topic mail\n"


def test_what_is_refused_makes_no_log_and_says_none_is_made(log):
    answer = log("shiplog", "append", "--ns", "prod", "--file", "-", stdin=b'{"type":"note"}')
    assert answer.code == 8 and "made" not in answer.err


def test_a_consumer_group_that_is_made_is_told_of_once(log):
    publish(log, "jobs")
    publish(log, "jobs")
    read = ("messages", "read", "--topic", "jobs", "--limit", "1", "--group")
    assert "made the consumer group workers\n" in log(*read, "workers").err
    assert "made" not in log(*read, "workers").err
    assert "made the consumer group workres; workers was there before" in log(*read, "workres").err
    moved = log("consumer", "reset", "--group", "workerss", "--ns", "jobs", "--to", "now", "--dry-run")
    assert moved.code == 0 and "made" not in moved.err
    made = log("consumer", "reset", "--group", "others", "--ns", "jobs", "--to", "now")
    assert made.code == 0 and made.err == "made the consumer group others\n"


def test_the_lag_of_a_group_that_is_not_there_is_not_found(log):
    publish(log, "jobs")
    log("messages", "read", "--topic", "jobs", "--group", "workers")
    answer = log("consumer", "lag", "--group", "worker", "--json")
    assert (answer.code, answer.json["advice"]) == (3, "Did you mean workers?")
    assert log("consumer", "lag", "--json").code == 0


def test_whoever_publishes_learns_what_the_policy_left_out(log, tmp_path):
    rules = {"privacy": {"rules": [{"select": "**.email", "action": "redact"}]}}
    (tmp_path / "log.git/ropewalk/policy.json").write_text(json.dumps(rules))
    private = b'{"type":"note","payload":{"user":{"email":"ada@example.test"}}}'
    answer = append(log, "people", private)
    assert answer.json["redacted"] == ["/user/email"] and answer.json["pointerized"] == []
    assert "the policy removed /user/email before it was recorded" in answer.err
    lines = log(
        *("shiplog", "append", "--ns", "people", "--file", "-", "--jsonl", "--json"),
        stdin=EVENT + b"\n" + private + b"\n",
    )
    plain, changed = map(json.loads, lines.text.splitlines())
    assert "redacted" not in plain and changed["redacted"] == ["/user/email"]
    assert log("shiplog", "read", "--ns", "people", "--json").json["events"][0]["envelope"]["payload"] == {
        "user": {}
    }


def test_whoever_publishes_learns_what_the_policy_put_behind_a_pointer(log, tmp_path):
    assert log("key", "new", "private", "--alg", "xchacha20poly1305").code == 0
    rules = {"privacy": {"rules": [{"select": "card", "action": "pointerize"}]}}
    (tmp_path / "log.git/ropewalk/policy.json").write_text(json.dumps(rules))
    answer = append(log, "people", b'{"type":"note","payload":{"card":"4111-1111"}}')
    assert answer.json["pointerized"] == ["/card"]
    assert "the policy put /card behind a pointer" in answer.err


def test_a_policy_nobody_can_read_is_told_before_the_command_runs(log, tmp_path):
    (tmp_path / "log.git/ropewalk/policy.json").write_text("{")
    answer = log("shiplog", "run", "--ns", "prod", "--", "touch", "ran")
    assert answer.code == 6 and "cannot be applied" in answer.err
    assert not (tmp_path / "ran").exists()


def test_a_gossip_topic_that_is_made_is_told_of_once(log):
    say = ("gossip", "append", "--payload", "-", "--topic")
    first = log(*say, "com.example.chat", stdin=b'{"text":"hi"}')
    assert (first.code, first.err) == (0, "made the gossip topic com.example.chat\n")
    assert log(*say, "com.example.chat", stdin=b'{"text":"hi"}').err == ""
    slip = log(*say, "com.example.caht", stdin=b'{"text":"hi"}')
    assert slip.err == "made the gossip topic com.example.caht; com.example.chat was there before\n"


def test_what_an_option_takes_is_named_by_a_word_of_ours(ropewalk):
    for command in (("shiplog", "read"), ("ledger", "read"), ("bundle", "export"), ("consumer", "lag")):
        shown = ropewalk(*command, "--help").text
        assert "INTEGER" not in shown and " TEXT" not in shown.replace("--created-at TEXT", "")
