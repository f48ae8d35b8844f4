"""Importing journals: the same on every machine, whatever is in them, and as often as one likes."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.torture.gitlog import FailingDisk
from tests.unit.gitlog.journals import ADA, HEAD, SEPARATOR, Journal, message, notes, trailer

from ropewalk.disk.repository_paths import make_repository
from ropewalk.errors import HeadMoved, InvalidName, Unavailable
from ropewalk.gitlog.compat.conversion import source_of, ulid_of
from ropewalk.gitlog.compat.entries import native_trailer, parse_entry, slug
from ropewalk.gitlog.compat.transfer import import_from_compat, sealed_note
from ropewalk.gitlog.core.commit import parse_message
from ropewalk.gitlog.core.layout import LOG_NOTES, check_namespace
from ropewalk.gitlog.core.notes import read_note
from ropewalk.gitlog.core.objects import (
    Commit,
    GitSignature,
    Oid,
    build_path_trees,
    encode_commit,
    object_id,
    parse_commit,
)
from ropewalk.gitlog.privacy.pointer import open_pointer, parse_pointer
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.verify.log_check import verify_log
from ropewalk.kernel.digest import content_id
from ropewalk.kernel.seal import SealingKey


def reasons(report):
    return [problem.reason for problem in report.problems]


def exit_code(report):
    return report.refused.exit_code if report.refused else 0


def only(log, topic="prod"):
    (event,) = log.events(topic)
    return event


def commit_of(log, event):
    return parse_commit(log.store.get(event.commit)[1])


def test_an_entry_becomes_an_event_with_its_trailer_and_source(log):
    oid = Journal(log.store).add()
    report = import_from_compat(log)
    event = only(log)
    assert (report.imported, report.skipped, report.problems) == (1, 0, [])
    assert event.type == "deployment.success"
    assert event.payload["trailer"] == trailer()
    assert event.payload["source"] == {
        "profile": "shiplog-compat",
        "ref": "refs/_shiplog/journal/prod",
        "commit": oid,
        "signature": "none",
    }


def test_author_committer_dates_and_zone_are_kept(log):
    journal = Journal(log.store)
    ben = GitSignature("Ben Rél", "ben@example.test", 1_650_000_000, "-0730")
    oid = journal.add(author=ben)
    import_from_compat(log)
    source, made = parse_commit(log.store.get(oid)[1]), commit_of(log, only(log))
    assert (made.author, made.committer) == (source.author, source.committer)


def test_the_trailer_of_s0_has_no_null_no_ts_and_one_repo_head(log):
    Journal(log.store).add()
    import_from_compat(log)
    native = parse_message(commit_of(log, only(log)).message).trailer
    assert native is not None and native["what"] == {"service": "web"} and native["repo_head"] == "0" * 40
    assert native["where"] == {"namespace": "prod"} and "ts" not in native and "how" not in native


def test_import_again_adds_only_new_entries(log):
    journal = Journal(log.store)
    journal.add()
    journal.add()
    import_from_compat(log)
    head = log.store.head("refs/gatos/shiplog/prod/head")
    again = import_from_compat(log)
    assert (again.imported, again.skipped) == (0, 2)
    assert log.store.head("refs/gatos/shiplog/prod/head") == head
    journal.add()
    more = import_from_compat(log)
    assert (more.imported, more.skipped) == (1, 2)


def test_piece_by_piece_ends_where_all_at_once_ends(log, tmp_path):
    # Clocks that stand still, jump ahead and run backwards, so that ULIDs have to give way to order.
    steps = [1, 0, 0, 500, -400, 0, 1, -1000, 3, 0]
    journal = Journal(log.store)
    for seconds in steps:
        journal.add(seconds=seconds)
        import_from_compat(log)
    place, _ = make_repository(tmp_path / "other.git")
    with open_repository(place.git_dir) as other:
        twin = Journal(other.store)
        for seconds in steps:
            twin.add(seconds=seconds)
        assert import_from_compat(other).imported == len(steps)
        ref = "refs/gatos/shiplog/prod/head"
        assert other.store.head(ref) == log.store.head(ref)
    assert [e.ulid for e in log.events("prod")] == sorted(e.ulid for e in log.events("prod"))


def test_batches_join_without_a_seam(log, monkeypatch):
    journal = Journal(log.store)
    oids = [journal.add(seconds=at % 2) for at in range(23)]
    monkeypatch.setattr("ropewalk.gitlog.compat.importer.BATCH", 4)
    assert import_from_compat(log).imported == 23
    assert [event.payload["source"]["commit"] for event in log.events("prod")] == oids
    assert import_from_compat(log).skipped == 23


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("QA", "qa"),
        ("a/b", "a-b"),
        ("eu/Prod/2", "eu-prod-2"),
        ("prod é", "prod--"),
        ("2024", "env-2024"),
        ("été", "env-t-"),
        ("x.LOCK", "x-lock"),
        ("E" * 80, "e" * 64),
    ],
)
def test_an_environment_that_is_no_namespace_gets_a_slug(env, name):
    assert slug(env) == name
    assert check_namespace(slug(env)) == name


@given(st.text(min_size=1, max_size=90))
def test_a_slug_is_a_namespace_or_refused_by_name(env):
    try:
        check_namespace(slug(env))
    except InvalidName:
        assert not any(letter.isascii() and letter.isalnum() for letter in env) or ".." in env


@pytest.mark.parametrize("env", ["QA", "a/b", "Ünïcode", "prod.v2", "under_score"])
def test_journals_of_any_name_are_imported_and_remember_it(log, env):
    Journal(log.store, env).add(trailer(env=env))
    report = import_from_compat(log)
    assert report.imported == 1 and report.problems == []
    event = only(log, slug(env))
    assert event.payload["source"]["ref"].endswith(env) and event.payload["trailer"]["env"] == env


def test_a_map_names_the_namespace(log):
    Journal(log.store, "QA").add(trailer(env="QA"))
    report = import_from_compat(log, {"QA": "quality"})
    assert report.mapped == {"QA": "quality"} and only(log, "quality")


def test_two_journals_of_one_name_are_refused_and_the_rest_comes_in(log):
    for env in ("QA", "Qa", "prod"):
        Journal(log.store, env).add(trailer(env=env))
    report = import_from_compat(log)
    assert report.imported == 1 and exit_code(report) == 4
    assert sorted(problem.ref for problem in report.problems) == [
        "refs/_shiplog/journal/QA",
        "refs/_shiplog/journal/Qa",
    ]
    assert all("--map" in problem.reason for problem in report.problems)
    assert import_from_compat(log, {"QA": "qa1", "Qa": "qa2"}).imported == 2


def test_import_prefers_names_that_are_namespaces(log):
    Journal(log.store, "QA").add(trailer(env="QA"))
    Journal(log.store, "qa").add(trailer(env="qa"))
    report = import_from_compat(log)
    assert report.imported == 1 and only(log, "qa").payload["trailer"]["env"] == "qa"


def test_a_namespace_that_holds_another_journal_is_not_mixed(log):
    Journal(log.store, "QA").add(trailer(env="QA"))
    import_from_compat(log)
    Journal(log.store, "qa").add(trailer(env="qa"))
    report = import_from_compat(log)
    assert exit_code(report) == 4 and len(list(log.events("qa"))) == 1
    assert any("holds journal refs/_shiplog/journal/QA already" in reason for reason in reasons(report))


def test_a_map_for_no_journal_is_said(log):
    Journal(log.store).add()
    assert "--map nope" in reasons(import_from_compat(log, {"nope": "x"}))[0]


def test_a_bad_namespace_in_a_map_is_refused(log):
    with pytest.raises(InvalidName):
        import_from_compat(log, {"prod": "a..b"})


# --- rewritten journals ---


def rewritten(log, keep):
    journal = Journal(log.store)
    oids = [journal.add() for _ in range(4)]
    other = Journal(log.store, "staging")
    other.add(trailer(env="staging"))
    import_from_compat(log)
    old = journal.head
    journal.time_s += 50
    fresh = journal.add(parents=(oids[keep],) if keep >= 0 else (), move=False)
    log.store.move_head(journal.ref, old, fresh)
    other.add(trailer(env="staging"))
    return import_from_compat(log)


@pytest.mark.parametrize("keep", [2, 1, 0, -1])
def test_a_rewritten_journal_is_refused_and_others_come_in(log, keep):
    report = rewritten(log, keep)
    assert isinstance(report.refused, HeadMoved) and exit_code(report) == 4
    assert "was rewritten" in reasons(report)[0] and report.imported == 1
    assert len(list(log.events("prod"))) == 4 and len(list(log.events("staging"))) == 2


def test_a_journal_that_was_shortened_is_refused(log):
    journal = Journal(log.store)
    first = journal.add()
    second = journal.add()
    import_from_compat(log)
    log.store.move_head(journal.ref, second, first)
    assert isinstance(import_from_compat(log).refused, HeadMoved)


def test_a_log_that_was_rewritten_is_not_built_upon_and_others_come_in(log):
    for env in ("prod", "staging"):
        journal = Journal(log.store, env)
        journal.add(trailer(env=env))
        journal.add(trailer(env=env))
    import_from_compat(log)
    ref = "refs/gatos/shiplog/prod/head"
    first = next(iter(log.events("prod"))).commit
    log.store.move_head(ref, log.store.head(ref), first)
    Journal(log.store, "staging").add(trailer(env="staging"))
    report = import_from_compat(log)
    assert exit_code(report) == 5 and report.imported == 1


def test_events_of_our_own_may_stand_between(log):
    journal = Journal(log.store)
    journal.add()
    import_from_compat(log)
    log.append("prod", {"type": "note", "payload": {}})
    journal.add()
    report = import_from_compat(log)
    assert (report.imported, report.skipped, report.problems) == (1, 1, [])
    assert import_from_compat(log).imported == 0
    assert [event.type for event in log.events("prod")] == [
        "deployment.success",
        "note",
        "deployment.success",
    ]


def test_an_append_that_comes_between_is_not_lost(log, monkeypatch):
    journal = Journal(log.store)
    oids = [journal.add() for _ in range(3)]
    real = log.store.move_head
    once: list[bool] = []

    def move_head(ref, expected, new):
        if ref == "refs/gatos/shiplog/prod/head" and not once:
            once.append(True)
            log.append("prod", {"type": "first", "payload": {}})  # another writer, just before us
        real(ref, expected, new)

    monkeypatch.setattr(log.store, "move_head", move_head)
    report = import_from_compat(log)
    assert report.imported == 3 and report.problems == []
    assert [event.type for event in log.events("prod")] == ["first", *["deployment.success"] * 3]
    assert [source_of(event)[1] for event in log.events("prod") if source_of(event)] == oids  # type: ignore[index]
    assert import_from_compat(log).skipped == 3


def test_two_imports_at_once_bring_every_entry_in_once(log, place, monkeypatch):
    journal = Journal(log.store)
    oids = [journal.add() for _ in range(3)]
    real = log.store.move_head
    other: list[int] = []

    def move_head(ref, expected, new):
        if not other:
            other.append(0)
            with open_repository(place.git_dir) as rival:
                monkeypatch.setattr(rival.store, "turn", lambda _ref: contextlib.nullcontext())  # held by us
                monkeypatch.setattr(rival.store.refs, "turn", lambda _ref: contextlib.nullcontext())
                other.append(import_from_compat(rival).imported)
        real(ref, expected, new)

    monkeypatch.setattr(log.store, "move_head", move_head)
    report = import_from_compat(log)
    assert (other[1], report.imported, report.skipped) == (3, 0, 3)
    assert [source_of(event)[1] for event in log.events("prod")] == oids  # type: ignore[index]
    assert verify_log_ok(log)


def test_import_failure_changes_nothing(log, monkeypatch):
    for env in ("prod", "qa"):
        journal = Journal(log.store, env)
        for _ in range(7):
            journal.add()
    log.append("qa", {"type": "before", "payload": {}})
    monkeypatch.setattr("ropewalk.gitlog.compat.importer.BATCH", 3)
    before = log.store.heads("refs/")
    real, packs = log.store.put, []

    def put(objects):
        packs.append(objects)
        if len(packs) == 5:
            raise KeyboardInterrupt
        return real(objects)

    monkeypatch.setattr(log.store, "put", put)
    with pytest.raises(KeyboardInterrupt):
        import_from_compat(log)
    assert log.store.heads("refs/") == before
    assert not list(log.store.pack_folder.glob("*.keep"))
    report = import_from_compat(log)
    assert (report.imported, report.skipped, report.problems) == (14, 0, [])
    assert verify_log_ok(log) and verify_log_ok(log, "qa")


def test_import_failing_write_is_all_or_nothing(tmp_path):
    nth, outcomes = 0, set()
    while True:
        nth += 1
        place = make_repository(tmp_path / f"{nth}.git")[0]
        with open_repository(place.git_dir) as log:
            journal = Journal(log.store)
            oids = [journal.add() for _ in range(3)]
            refs = set(log.store.heads("refs/"))
        disk = FailingDisk(nth)
        with open_repository(place.git_dir, disk=disk) as log, contextlib.suppress(Unavailable):
            import_from_compat(log)
        with open_repository(place.git_dir) as log:
            made = {ref for ref in log.store.heads("refs/") if ref not in refs}
            outcomes.add(len(made))
            assert not made or len(list(log.events("prod"))) == 3
            left = [*place.git_dir.glob("refs/**/*.lock"), *log.store.pack_folder.glob("*.keep")]
            assert not left or disk.failed == "unlink"  # what could not be removed is swept later
            report = import_from_compat(log)
            assert report.imported + report.skipped == 3
            assert [source_of(event)[1] for event in log.events("prod")] == oids  # type: ignore[index]
            assert verify_log_ok(log)
        if not disk.failed:
            break
    assert outcomes == {0, 1}


def test_a_torn_ref_of_a_journal_is_listed_and_the_others_come_in(log):
    for env in ("prod", "qa"):
        Journal(log.store, env).add()
    (log.store.place.git_dir / "refs/_shiplog/journal/qa").write_bytes(b"torn")
    report = import_from_compat(log)
    assert report.imported == 1
    assert [problem.ref for problem in report.problems] == ["refs/_shiplog/journal/qa"]


# --- odd entries ---


@pytest.mark.parametrize(
    "separator", ["---\n", "---  # optional structured trailer for machines\n", "----\n"]
)
def test_any_line_that_starts_with_three_dashes_parts_text_and_trailer(log, separator):
    Journal(log.store).add(message(trailer(), separator=separator))
    assert import_from_compat(log).problems == []
    assert only(log).payload["trailer"] == trailer()


def test_the_last_separator_counts(log):
    Journal(log.store).add(message(trailer(), head="Deploy: x\nReason: one\n---\n{}\n--- two\n"))
    assert import_from_compat(log).problems == []
    assert only(log).payload["trailer"] == trailer()


def test_text_of_a_hook_behind_the_trailer_does_not_hide_it(log):
    text = message(trailer()) + b"\n\nSigned-off-by: Ada\n--- \n 1 file changed\n"
    Journal(log.store).add(text)
    report = import_from_compat(log)
    assert only(log).type == "deployment.success" and len(report.problems) == 2


@pytest.mark.parametrize("status", ["weird", "", "SUCCESS", None, 7, {"a": 1}, "é\n---"])
def test_a_status_outside_the_list_is_kept_and_listed(log, status):
    Journal(log.store).add(trailer(status=status))
    report = import_from_compat(log)
    event = only(log)
    assert event.type == "deployment.other" and event.payload["trailer"]["status"] == status
    assert "status" in reasons(report)[0]
    native = parse_message(commit_of(log, event).message).trailer
    assert native is not None and native["status"] == "success"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"status":"success","status":"failed"}', 'key "status" twice'),
        ('{"status":"failed","n":1e999}', "beyond all doubles"),
        ('{"status":"failed","n":NaN}', "NaN"),
        ('{"status":"failed","t":"\\ud800"}', "half a character"),
        ('{"status":"failed","t":"a\nb"}', "not strict JSON"),
    ],
)
def test_json_that_is_not_strict_is_read_as_jq_reads_it_and_listed(log, text, said):
    Journal(log.store).add(text)
    report = import_from_compat(log)
    event = only(log)
    assert event.type == "deployment.failed" and said in " ".join(reasons(report))
    assert event.payload["source"]["message"].endswith(text)


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '"x"', '{"a":', "7", '{"a":' * 300 + "1" + "}" * 300])
def test_an_entry_without_a_readable_trailer_keeps_its_message(log, text):
    Journal(log.store).add(text)
    report = import_from_compat(log)
    event = only(log)
    assert event.type == "deployment.other" and "trailer" not in event.payload
    assert event.payload["source"]["message"] == HEAD + SEPARATOR + text
    assert len(report.problems) == 1 and "kept" in reasons(report)[0]


def test_import_keeps_odd_entries_byte_for_byte(log):
    Journal(log.store).add(b"Deploy: caf\xe9\n")
    report = import_from_compat(log)
    assert only(log).payload["source"]["message_base64"] == "RGVwbG95OiBjYWbpCg=="
    assert len(report.problems) == 2


def test_a_message_in_another_encoding_is_read(log):
    text = message(trailer(why={"reason": "déjà", "ticket": None}), head="Deploy: x\n\n").decode()
    Journal(log.store).add(text.encode("latin-1"), extra=(("encoding", b"ISO-8859-1"),))
    assert import_from_compat(log).problems == []
    assert only(log).payload["trailer"]["why"]["reason"] == "déjà"


def test_numbers_are_doubles_as_jq_had_them(log):
    Journal(log.store).add(json.dumps(trailer())[:-1] + ',"big":12345678901234567890,"tiny":1e-06,"zero":-0}')
    assert import_from_compat(log).problems == []
    assert only(log).payload["trailer"]["big"] == 12345678901234567890.0
    assert verify_log_ok(log)


def test_numbers_that_s0_refuses_stay_in_the_payload(log):
    Journal(log.store).add(json.dumps(trailer(what={"service": "web", "build": 2**60})))
    report = import_from_compat(log)
    assert "what stays in the payload only" in reasons(report)[0]
    assert only(log).payload["trailer"]["what"]["build"] == 2**60
    assert verify_log_ok(log)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"who": "ada"}, "who"),
        ({"when": {"start_ts": "yesterday", "end_ts": "now", "dur_s": -1}}, "when"),
        ({"how": {"run_url": "not a uri"}}, "how"),
        ({"trust_oid": 7}, "trust_oid"),
        ({"version": 2}, "version"),
    ],
)
def test_a_field_that_s0_refuses_stays_in_the_payload(log, changes, field):
    Journal(log.store).add(trailer(**changes))
    report = import_from_compat(log)
    event = only(log)
    assert event.type == "deployment.success" and event.payload["trailer"] == trailer(**changes)
    assert any(f"trailer field {field} " in reason for reason in reasons(report))
    assert verify_log_ok(log)


def test_a_huge_trailer_is_imported(log):
    Journal(log.store).add(trailer(run={"output": "x" * 3_000_000}))
    assert import_from_compat(log).problems == []
    assert len(only(log).payload["trailer"]["run"]["output"]) == 3_000_000


def test_a_merge_is_listed_and_its_first_line_imported(log):
    journal = Journal(log.store)
    first = journal.add()
    side = journal.add(parents=(), move=False)
    journal.add(parents=(first, side))
    report = import_from_compat(log)
    assert report.imported == 2 and "2 parents" in " ".join(reasons(report))


def test_a_shallow_journal_is_imported_from_where_it_begins(log):
    journal = Journal(log.store)
    journal.add(parents=("a" * 40,))
    journal.add()
    report = import_from_compat(log)
    assert report.imported == 2 and "shallow" in reasons(report)[0]
    assert import_from_compat(log).skipped == 2


def test_a_journal_that_points_nowhere_does_not_stop_the_others(log):
    log.store.move_head("refs/_shiplog/journal/lost", None, "b" * 40)
    Journal(log.store).add()
    report = import_from_compat(log)
    assert report.imported == 1 and report.problems[0].ref == "refs/_shiplog/journal/lost"


def test_a_place_in_the_journal_that_its_trailer_denies_is_listed(log):
    Journal(log.store).add(trailer(env="other", journal_parent="c" * 40))
    said = " ".join(reasons(import_from_compat(log)))
    assert "got 'other'" in said and "journal_parent" in said


@pytest.mark.parametrize("time_s", [-5, 10**15])
def test_a_time_no_calendar_holds_is_listed(log, time_s):
    log.store.clock_skew_ms = 1 << 48  # else what is dated ahead of the clock is refused
    Journal(log.store).add(author=GitSignature("A", "a@b", time_s))
    report = import_from_compat(log)
    assert report.imported == 1 and "outside 1970 to 9999" in " ".join(reasons(report))


def test_a_person_git_would_not_write_is_listed(log):
    journal = Journal(log.store)
    good = journal.add(move=False)
    raw = log.store.get(good)[1].replace(b"author Ada Ops <ada@example.test>", b"author Ada Ops <ada<x>>")
    journal.add(raw=raw)
    report = import_from_compat(log)
    assert report.imported == 1 and len(report.problems) == 1
    assert commit_of(log, only(log)).author.name == "Ada Ops"


def test_a_secret_in_an_entry_is_named_but_not_shown(log):
    token = "ghp_" + "Zk3q" * 9
    Journal(log.store).add(trailer(why={"reason": f"rotate {token}", "ticket": None}))
    report = import_from_compat(log)
    assert report.imported == 1 and "github-token at /payload/trailer/why/reason" in reasons(report)[0]
    assert token not in str(report.to_json())


# --- what lies around the entries ---


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("ref", ["refs/notes/refs/_shiplog/notes/logs", "refs/_shiplog/notes/logs"])
def test_notes_are_found_in_both_places_and_at_any_depth(log, ref, depth):
    journal = Journal(log.store)
    first, second = journal.add(), journal.add()
    notes(log.store, ref, {first: b"one\n", second: b"\xff\x00two"}, depth)
    report = import_from_compat(log)
    events = list(log.events("prod"))
    assert report.notes == 2 and report.problems == []
    assert [read_note(log.store, LOG_NOTES, event.commit) for event in events] == [b"one\n", b"\xff\x00two"]


def test_notes_that_come_later_are_hung_on_what_is_there(log):
    oid = Journal(log.store).add()
    import_from_compat(log)
    notes(log.store, "refs/notes/refs/_shiplog/notes/logs", {oid: b"late"})
    report = import_from_compat(log)
    assert (report.imported, report.notes) == (0, 1)
    assert read_note(log.store, LOG_NOTES, only(log).commit) == b"late"
    assert import_from_compat(log).notes == 0


def test_notes_are_sealed_or_left_on_request(log):
    journal = Journal(log.store)
    first = journal.add()
    notes(log.store, "refs/_shiplog/notes/logs", {first: b"output"})
    assert import_from_compat(log, note=lambda _: None).notes == 0
    key = SealingKey(bytes(32))
    assert import_from_compat(log, note=sealed_note(log, key, "vault")).notes == 1
    hung = read_note(log.store, LOG_NOTES, only(log).commit)
    assert hung is not None
    pointer = parse_pointer(hung)
    record = log.private.find(pointer.ciphertext_digest)
    blob = log.private.blob(record.ciphertext_digest)
    assert open_pointer(key, pointer, blob, actor=record.actor, policy=record.policy) == b"output"
    assert import_from_compat(log, note=sealed_note(log, key, "vault")).notes == 0


def test_a_note_on_something_else_is_listed(log):
    Journal(log.store).add()
    notes(log.store, "refs/_shiplog/notes/logs", {"d" * 40: b"x"})
    assert import_from_compat(log).problems[0].commit == "d" * 40


def test_an_anchor_becomes_an_anchor_once(log):
    journal = Journal(log.store)
    first = journal.add()
    journal.add()
    log.store.move_head("refs/_shiplog/anchors/prod", None, first)
    report = import_from_compat(log)
    event = next(iter(log.events("prod")))
    assert [(each["ns"], each["head"]) for each in report.anchors] == [("prod", event.commit)]
    head = log.store.head("refs/gatos/shiplog/prod/anchors")
    import_from_compat(log)
    assert log.store.head("refs/gatos/shiplog/prod/anchors") == head


def test_an_anchor_on_nothing_is_listed(log):
    Journal(log.store).add()
    log.store.move_head("refs/_shiplog/anchors/prod", None, "e" * 40)
    assert "anchor" in reasons(import_from_compat(log))[0]


def test_what_stays_behind_is_named(log):
    oid = Journal(log.store).add()
    for name in ("trust/root", "policy/current", "consumers/a/prod"):
        log.store.move_head(f"refs/_shiplog/{name}", None, oid)
    report = import_from_compat(log)
    assert [each["ref"].removeprefix("refs/_shiplog/") for each in report.not_carried] == [
        "consumers/a/prod",
        "policy/current",
        "trust/root",
    ]


def test_journals_kept_as_branches_are_found(log):
    Journal(log.store, root="refs/heads/_shiplog/").add()
    assert import_from_compat(log).imported == 1


def planted(store, document: bytes, name: str, ns: str = "prod") -> Oid:
    """A commit of a journal that has an envelope in its tree, as S0's compatibility profile allows."""
    tree, objects = build_path_trees(("gatos", "shiplog", ns, f"{name}.json"), document)
    made = encode_commit(Commit(tree, (), ADA, ADA, message(trailer())))
    oid = object_id("commit", made)
    with store.put([*objects, (oid, "commit", made)]):
        store.move_head("refs/_shiplog/journal/prod", None, oid)
    return oid


def test_an_envelope_in_the_tree_is_used_and_made_canonical(log):
    name = "01HF4Y9Q1SM8Q7K9DK2R4V5CXD"
    # As `jq -cS` prints it: sorted, but numbers and line ends are not those of RFC 8785.
    document = b'{"ns":"prod","payload":{"n":1.0,"x":1e2},"type":"native","ulid":"%s"}\n' % name.encode()
    planted(log.store, document, name)
    report = import_from_compat(log)
    event = only(log)
    assert report.problems == [] and event.ulid == name and event.type == "native"
    assert event.raw == b'{"ns":"prod","payload":{"n":1,"x":100},"type":"native","ulid":"%s"}' % name.encode()
    assert event.content_id == content_id(event.raw)
    assert import_from_compat(log).skipped == 1


@pytest.mark.parametrize(
    "document",
    [
        b"{",
        b"[]",
        b'{"ulid":"x"}',
        b'{"ns":"other","payload":{},"type":"t","ulid":"01HF4Y9Q1SM8Q7K9DK2R4V5CXD"}',
    ],
)
def test_an_envelope_in_the_tree_that_does_not_fit_is_not_demanded(log, document):
    planted(log.store, document, "01HF4Y9Q1SM8Q7K9DK2R4V5CXD")
    assert import_from_compat(log).imported == 1
    assert only(log).type == "deployment.success"


# --- properties ---


def verify_log_ok(log, topic="prod"):
    from ropewalk.gitlog.core.layout import SHIPLOG

    report = verify_log(log.store, SHIPLOG, topic)
    return all(step.status != "failed" for step in report.steps)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([*trailer(), "seq", "run", "x"]), JSON_VALUES, max_size=8))
def test_a_trailer_of_any_values_has_a_form_of_s0_or_none(found):
    native, problems = native_trailer(found)
    from ropewalk.gitlog.core.commit import check_trailer

    if native is None:
        assert problems
    else:
        when = {"start_ts": "2023-11-14T22:13:20Z", "end_ts": "2023-11-14T22:13:20Z", "dur_s": 0}
        check_trailer({"version": 1, "when": when, **native})


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_break_the_reader(raw):
    entry = parse_entry(Oid("0" * 40), b"tree x\nauthor a\n\n" + raw)
    assert entry.trailer is None or isinstance(entry.trailer, dict)


@given(st.lists(st.tuples(st.integers(-(2**40), 2**50), st.binary(min_size=20, max_size=20)), max_size=20))
def test_ulids_of_imported_commits_go_up_whatever_the_clock(rows):
    last = None
    for time_s, oid in rows:
        made = ulid_of(oid.hex(), time_s, last)
        assert last is None or made > last
        last = made
