"""Help for new users: explain, completion, tracebacks, spans of time, and what `shiplog run` records."""

from __future__ import annotations

import os
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ropewalk.cli.git.events import since_ms
from ropewalk.errors import Invalid


def test_explain_names_meaning_exit_code_and_advice(ropewalk):
    (row,) = ropewalk("explain", "headmoved", "--json").json["errors"]
    assert (row["code"], row["exit_code"], row["status"]) == ("AppendRejected", 4, 409)
    assert row["advice"] in ropewalk("explain", "AppendRejected").text
    codes = [row["exit_code"] for row in ropewalk("explain", "5", "--json").json["errors"]]
    assert len(codes) > 3 and set(codes) == {5}
    assert "HeadMoved " in ropewalk("explain").text
    wrong = ropewalk("explain", "HeedMoved")
    assert wrong.code == 3 and "Did you mean HeadMoved?" in wrong.err


def test_debug_prints_a_traceback(ropewalk):
    plain, full = (ropewalk("hash", "-", *more, stdin=b"{") for more in ((), ("--debug",)))
    assert "Traceback" not in plain.err and plain.code == full.code == 8
    assert "Traceback" in full.err and full.err.endswith(plain.err)


def test_mistyped_options_are_suggested(ropewalk):
    assert "--since" in ropewalk("shiplog", "ls", "--sinse", "2d").err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_of_each_shell(ropewalk, shell):
    assert "_ROPEWALK_COMPLETE" in ropewalk("completion", shell).text


def test_completion_lists_commands_namespaces_channels_and_groups(log):
    event = b'{"type":"t","payload":{}}'
    assert log("shiplog", "append", "--ns", "prod", "--file", "-", stdin=event).code == 0
    assert log("messages", "publish", "--topic", "jobs/pending", "--file", "-", stdin=event).code == 0
    assert log("messages", "read", "--topic", "jobs/pending", "--group", "workers").code == 0
    assert log("ledger", "create", "--channel", "audit").code == 0
    log_env = {"_ROPEWALK_COMPLETE": "bash_complete"}
    for words, expected in (
        ("ropewalk ship", "shiplog"),
        ("ropewalk shiplog read --ns p", "prod"),
        ("ropewalk messages read --topic j", "jobs/pending"),
        ("ropewalk consumer lag --group w", "workers"),
        ("ropewalk ledger read --channel a", "audit"),
    ):
        env = {**log_env, "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert log(env_more=env).text.split() == [f"plain,{expected}"], words
    for words in ("ropewalk verify a", "ropewalk verify x --trust t", "ropewalk --repo l"):
        env = {**log_env, "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert log(env_more=env).text.startswith("file,"), words


def test_since_takes_spans_days_and_dates():
    now = time.time_ns() // 1_000_000
    today = datetime.combine(datetime.fromtimestamp(now / 1000).date(), datetime.min.time())
    assert since_ms("today", now) == int(today.timestamp() * 1000)
    assert since_ms("yesterday", now) == int((today - timedelta(days=1)).timestamp() * 1000)
    assert since_ms("2h", now) == now - 7_200_000
    with pytest.raises(Invalid, match="must be a span"):
        since_ms("noon", now)


def test_run_records_the_commit_of_the_work_tree(ropewalk, tmp_path):
    def git(*words: str) -> str:
        who = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
        return subprocess.run(
            ["git", *who, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    assert ropewalk("init").code == 0
    run = ropewalk("shiplog", "run", "--ns", "prod", "--", "sh", "-c", "exit 3", "--token", "abc")
    assert run.code == 3 and run.err.startswith("recorded  failed with exit code 3  commit=")
    assert " failed " in ropewalk("shiplog", "ls").text  # also without --service
    shown = ropewalk("shiplog", "show", "prod", "--json").json
    assert shown["trailer"]["repo_head"] == git("rev-parse", "HEAD").strip()
    ran = shown["envelope"]["payload"]["run"]
    assert ran["argv"] == ["sh", "-c", "exit 3", "--token", "[scrubbed]"] and "abc" not in ran["cmd"]


def test_doctor_reports_stale_locks_and_unfetched_remotes(log, tmp_path):
    folder = tmp_path / "log.git" / "refs" / "gatos" / "shiplog" / "prod"
    folder.mkdir(parents=True)
    lock = folder / "head.lock"
    lock.write_text("")
    os.utime(lock, (0, 0))
    subprocess.run(["git", "-C", tmp_path / "log.git", "remote", "add", "origin", "nowhere.git"], check=True)
    checks = log("doctor", "--json").json["checks"]
    found = {check["name"]: check for check in checks}
    assert found["lock"]["status"] == "failed" and str(Path(lock).name) in found["lock"]["detail"]
    assert "`ropewalk pull origin`" in found["remote"]["detail"]
    assert found["descriptors"]["status"] == "passed"


def test_explain_puts_the_named_error_first(ropewalk):
    answer = ropewalk("explain", "DigestMismatch", "--json")
    assert answer.json["errors"][0]["code"] == "DigestMismatch"
