"""Exporting: incremental, recognised on the way back, and never over somebody else's entries."""

from __future__ import annotations

import json

import pytest
from tests.unit.gitlog.journals import Journal, trailer

from ropewalk.errors import Conflict, InvalidName, NotFound
from ropewalk.gitlog.compat.entries import parse_entry
from ropewalk.gitlog.compat.transfer import export_to_compat, import_from_compat
from ropewalk.gitlog.consumers.consumers import set_cursor
from ropewalk.gitlog.core.layout import LOG_NOTES
from ropewalk.gitlog.core.notes import add_note, read_note
from ropewalk.gitlog.core.objects import Oid, parse_commit
from ropewalk.gitlog.repository.signing import set_anchor

REF = "refs/_shiplog/journal/prod"
MIRROR = "refs/_shiplog/consumers/ci/prod"
NOTES = "refs/notes/refs/_shiplog/notes/logs"


def entries(log, ref=REF):
    at, found = log.store.head(ref), []
    while at:
        found.append(parse_entry(Oid(at), log.store.get(at)[1]))
        at = next(iter(found[-1].commit.parents), None)
    return found[::-1]


def test_an_event_carries_its_ulid_content_id_and_envelope(log):
    receipt = log.append("prod", {"type": "deploy.finished", "payload": {"n": 1.5}})
    report = export_to_compat(log, "prod")
    (entry,) = entries(log)
    assert report.exported == 1 and report.refs == {REF: entry.oid}
    assert (entry.trailer["ulid"], entry.trailer["content_id"]) == (receipt.ulid, receipt.content_id)
    assert entry.trailer["envelope"] == next(iter(log.events("prod"))).envelope
    assert entry.problems == () and entry.trailer["what"]["service"] == "prod"


def test_export_invents_no_person_and_no_service(log):
    log.append("prod", {"type": "a", "payload": {"service": "web"}}, trailer={"who": {"name": "Jane"}})
    log.append("prod", {"type": "a", "payload": {"service": 7}})
    export_to_compat(log, "prod")
    named, plain = entries(log)
    assert named.problems == plain.problems == ()
    assert (named.trailer["who"], named.trailer["what"]["service"]) == ({"name": "Jane", "email": ""}, "web")
    author = plain.commit.author
    assert plain.trailer["who"] == {"name": author.name, "email": author.mail}
    assert plain.trailer["what"]["service"] == "prod"  # the bash tool demands one


def test_a_second_export_adds_nothing_and_a_longer_log_only_what_is_new(log):
    log.append("prod", {"type": "a", "payload": {}})
    export_to_compat(log, "prod")
    again = export_to_compat(log, "prod")
    assert (again.exported, again.skipped) == (0, 1)
    log.append("prod", {"type": "b", "payload": {}})
    more = export_to_compat(log, "prod")
    assert (more.exported, more.skipped) == (1, 1)
    assert [entry.trailer["seq"] for entry in entries(log)] == [0, 1]


def test_cursors_are_mirrored_to_the_journal(log):
    receipts = [log.append("prod", {"type": name, "payload": {}}) for name in "abc"]
    log.append("other", {"type": "x", "payload": {}})
    set_cursor(log, "ci", "prod", receipts[1].ulid)
    set_cursor(log, "ci", "other", next(log.events("other")).ulid)
    assert MIRROR not in export_to_compat(log, "prod").refs and log.store.head(MIRROR) is None
    assert export_to_compat(log, "prod", consumers=True).refs[MIRROR] == entries(log)[1].oid
    assert list(log.store.head_names("refs/_shiplog/consumers/")) == [MIRROR]
    for place in (2, 0):  # the mirror follows, also backwards
        set_cursor(log, "ci", "prod", receipts[place].ulid, reset=True)
        export_to_compat(log, "prod", consumers=True)
        assert log.store.head(MIRROR) == entries(log)[place].oid
    left = {each["ref"]: each["reason"] for each in import_from_compat(log).not_carried}
    assert "checkpoint set" in left[MIRROR]


def test_an_import_of_what_was_exported_adds_nothing(log):
    for name in "abc":
        log.append("prod", {"type": name, "payload": {}})
    export_to_compat(log, "prod")
    report = import_from_compat(log)
    assert (report.imported, report.skipped, report.problems) == (0, 3, [])


@pytest.mark.parametrize("env", ["prod", "elsewhere"])
@pytest.mark.parametrize(
    "changes",
    [
        lambda said: {"envelope": {**said["envelope"], "payload": {"n": 2}}},
        lambda said: {"content_id": "blake3:" + "0" * 64},
        lambda said: {"envelope": {**said["envelope"], "ulid": "not one"}},
        lambda said: {"envelope": {**said["envelope"], "ulid": "00000000000000000000000000"}},
    ],
)
def test_an_exported_entry_that_somebody_changed_is_no_longer_ours(log, env, changes):
    log.append("prod", {"type": "t", "payload": {"n": 1}})
    ref = export_to_compat(log, "prod", env=env).refs.popitem()[0]
    assert import_from_compat(log).imported == 0
    (entry,) = entries(log, ref)
    journal = Journal(log.store, env)
    changed = journal.add({**entry.trailer, **changes(entry.trailer)}, parents=())
    with pytest.raises(Conflict, match="entries that are not in prod"):
        export_to_compat(log, "prod", env=env)
    report = import_from_compat(log)
    assert report.imported == 1
    assert {problem.commit for problem in report.problems} == {changed}
    if env == "prod":
        assert [event.payload.get("n") for event in log.events("prod")] == [1, None]


def test_a_journal_and_its_log_grow_together_from_both_sides(log, clock):
    journal = Journal(log.store)
    journal.add()
    import_from_compat(log)
    clock.ms += 60_000
    log.append("prod", {"type": "ours", "payload": {}})
    journal.add()
    import_from_compat(log)
    assert export_to_compat(log, "prod").exported == 1
    journal.add()
    assert import_from_compat(log).imported == 1
    assert (import_from_compat(log).imported, export_to_compat(log, "prod").exported) == (0, 0)
    assert len(entries(log)) == len(list(log.events("prod"))) == 4
    # seq in the journal is its own, gap-free for what we write.
    assert [entry.trailer.get("seq") for entry in entries(log)][2] is not None


def test_entries_that_were_never_imported_are_not_built_upon(log):
    journal = Journal(log.store)
    oid = journal.add()
    log.append("prod", {"type": "ours", "payload": {}})
    with pytest.raises(Conflict) as refused:
        export_to_compat(log, "prod")
    assert oid in refused.value.detail and "import" in refused.value.advice_now
    assert log.store.head(REF) == oid


def test_a_log_goes_back_to_the_environment_it_came_from(log):
    Journal(log.store, "QA").add(trailer(env="QA"))
    import_from_compat(log)
    log.append("qa", {"type": "ours", "payload": {}})
    assert list(export_to_compat(log, "qa").refs) == ["refs/_shiplog/journal/QA"]
    assert entries(log, "refs/_shiplog/journal/QA")[1].trailer["env"] == "QA"


def test_the_environment_can_be_named(log):
    log.append("prod", {"type": "a", "payload": {}})
    assert list(export_to_compat(log, "prod", "live").refs) == ["refs/_shiplog/journal/live"]


def test_a_log_exported_under_another_name_is_recognised(log):
    Journal(log.store).add()
    import_from_compat(log)
    log.append("prod", {"type": "a", "payload": {}})
    export_to_compat(log, "prod", "live")
    report = import_from_compat(log)
    assert (report.imported, report.skipped, report.problems) == (0, 3, [])
    assert log.topics() == ["prod"]
    Journal(log.store, "live").add(trailer(env="live"))
    # With an entry of its own it is a journal like any other; it never lands in a log it only names.
    import_from_compat(log)
    assert len(list(log.events("prod"))) == 2 and log.topics() == ["live", "prod"]


def test_an_environment_git_refuses_is_refused(log):
    log.append("prod", {"type": "a", "payload": {}})
    with pytest.raises(InvalidName):
        export_to_compat(log, "prod", "a..b")


def test_a_log_that_is_not_there_is_not_found(log):
    with pytest.raises(NotFound):
        export_to_compat(log, "nothing")


@pytest.mark.parametrize("reason", ["one\n--- two", "---", "a\r\n---\r\nb", "x\u2028---", "“quotes” \\ \t"])
def test_no_reason_passes_for_the_separator(log, reason):
    fields = {
        "why": {"reason": reason},
        "what": {"service": "w\n---"},
        "who": {"name": "A", "email": "a\n---@b"},
    }
    log.append("prod", {"type": "a", "payload": {}}, trailer=fields)
    export_to_compat(log, "prod")
    (entry,) = entries(log)
    lines = entry.commit.message.decode().split("\n")
    assert sum(line.startswith("---") for line in lines) == 1
    assert entry.problems == () and entry.trailer["why"]["reason"] == reason
    assert import_from_compat(log).skipped == 1


@pytest.mark.parametrize(("seconds", "whole"), [(0, 0), (1.9, 1), (70, 70), (0.2, 0)])
def test_durations_are_whole_seconds(log, seconds, whole):
    when = {"start_ts": "2025-11-10T10:00:00Z", "end_ts": "2025-11-10T10:01:10Z", "dur_s": seconds}
    log.append("prod", {"type": "a", "payload": {}}, trailer={"when": when})
    export_to_compat(log, "prod")
    (entry,) = entries(log)
    assert entry.trailer["when"]["dur_s"] == whole and type(entry.trailer["when"]["dur_s"]) is int
    assert f"({whole}s)" in entry.commit.message.decode()


def test_where_is_shown_as_the_tool_shows_it(log):
    for where in (
        {},
        {"region": "eu"},
        {"cluster": "k"},
        {"region": "eu", "cluster": "k", "namespace": "shop"},
    ):
        log.append("prod", {"type": "a", "payload": {}}, trailer={"where": where})
    export_to_compat(log, "prod")
    shown = [entry.commit.message.decode().split("\n")[0].partition(" → ")[2] for entry in entries(log)]
    assert shown == ["prod", "prod/eu/prod", "prod/k/prod", "prod/eu/k/shop"]


def test_author_and_dates_are_kept_and_the_tree_is_empty(log):
    receipt = log.append("prod", {"type": "a", "payload": {}})
    export_to_compat(log, "prod")
    (entry,) = entries(log)
    native = parse_commit(log.store.get(receipt.commit)[1])
    assert (entry.commit.author, entry.commit.committer) == (native.author, native.committer)


def test_notes_and_anchors_go_out_too(log):
    receipt = log.append("prod", {"type": "a", "payload": {}})
    add_note(log.store, LOG_NOTES, receipt.commit, b"output\n", log.author(0))
    set_anchor(log, "prod", label="v1")
    report = export_to_compat(log, "prod")
    (entry,) = entries(log)
    assert report.notes == 1 and read_note(log.store, NOTES, entry.oid) == b"output\n"
    assert log.store.head("refs/_shiplog/anchors/prod") == entry.oid
    assert export_to_compat(log, "prod").notes == 0
    assert import_from_compat(log).problems == []


def test_a_missing_trust_root_is_said(log):
    log.append("prod", {"type": "a", "payload": {}})
    assert "trust" in export_to_compat(log, "prod").problems[0].reason


def test_batches_join_without_a_seam(log, monkeypatch):
    monkeypatch.setattr("ropewalk.gitlog.compat.exporter.BATCH", 3)
    for at in range(8):
        log.append("prod", {"type": "a", "payload": {"at": at}})
    export_to_compat(log, "prod")
    assert [entry.trailer["seq"] for entry in entries(log)] == list(range(8))


# --- the commands ---


def test_the_commands_answer_as_the_contract_says(log, place, tmp_path):
    from click.testing import CliRunner

    from ropewalk.cli.common.command import Session
    from ropewalk.cli.main import root

    Journal(log.store).add()
    Journal(log.store, "QA").add(trailer(env="QA", status="odd"))

    def run(*arguments):
        done = CliRunner().invoke(root, [*arguments, "--repo", str(place.git_dir), "--json"], obj=Session())
        return done.exit_code, json.loads(done.stdout)

    code, answer = run("shiplog", "import", "--from-compat", "--map", "QA=quality")
    assert code == 0 and {"imported", "skipped", "problems", "refs"} <= answer.keys()
    assert answer["imported"] == 2 and sorted(answer["refs"]) == [
        "refs/gatos/shiplog/prod/head",
        "refs/gatos/shiplog/quality/head",
    ]
    assert set(answer["problems"][0]) >= {"commit", "reason"}
    code, answer = run("shiplog", "export", "--to-compat", "--ns", "prod")
    assert code == 0 and answer["exported"] == 0 and REF in answer["refs"]


def test_a_rewritten_journal_ends_the_command_with_4(log, place):
    from click.testing import CliRunner

    from ropewalk.cli.common.command import Session
    from ropewalk.cli.main import root

    journal = Journal(log.store)
    first, second = journal.add(), journal.add()
    import_from_compat(log)
    log.store.move_head(journal.ref, second, first)
    done = CliRunner().invoke(
        root, ["shiplog", "import", "--from-compat", "--json", "--repo", str(place.git_dir)], obj=Session()
    )
    assert done.exit_code == 4 and "rewritten" in json.loads(done.stdout)["problems"][0]["reason"]
