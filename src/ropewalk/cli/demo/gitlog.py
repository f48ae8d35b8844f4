"""A deployment log in a plain git repository: appended, consumed, tampered with, and the refusals."""

from __future__ import annotations

import time
from collections.abc import Callable

from ropewalk.cli.demo.stage import Stage, node_key
from ropewalk.disk.repository_paths import make_repository
from ropewalk.errors import HistoryRewritten, RopewalkError
from ropewalk.gitlog.core.commit import rfc3339
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.core.objects import encode_commit, object_id, parse_commit
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.gitlog.repository.signing import sign_log
from ropewalk.repository_check import verify_gitlogs

NS = "deploy"
REF = SHIPLOG.head_ref(NS)
SERVICES = ("web", "api", "search")
PEOPLE = ("Ada", "Bob", "Cleo", "Dana")
DAYS = 10
DAY_MS = 86_400_000


def run(stage: Stage) -> None:
    """Show a log whose history cannot be changed unnoticed."""
    place, _ = make_repository(stage.directory / "demo.git")
    stage.made["repository"] = str(place.git_dir)
    clock = [time.time_ns() // 1_000_000]
    with open_repository(place.git_dir, now_ms=lambda: clock[0]) as log:
        _append(stage, log, clock)
        _consume(stage, log)
        _verify(stage, log)
        _tamper(stage, log)


def _append(stage: Stage, log: GitRepository, clock: list[int]) -> None:
    """Append one build, then a pack of builds for each of the last ten days."""
    now_ms, build = clock[0], 1
    clock[0] -= DAYS * DAY_MS
    first = log.append(NS, {"type": "deployment.success", "payload": {"service": "web", "build": 1}})
    stage.show("appended", f"{first.ulid}  {first.content_id[:19]}…  commit {first.commit[:7]}, on disk")
    for _ in range(DAYS):
        clock[0] += DAY_MS - 60_000
        log.append_all(NS, [_build(build + n, clock[0]) for n in range(1, 21)])
        build += 20
    clock[0] = now_ms
    stage.show("and then", f"{build - 1} more in {DAYS} packs, each its own commit on {REF}")


def _build(number: int, at_ms: int) -> Draft:
    service, who = SERVICES[number % 3], PEOPLE[number % len(PEOPLE)]
    trailer = {
        "env": "staging",
        "what": {"service": service, "artifact": f"{service}:build.{number}"},
        "who": {"name": who},
        "when": {
            "start_ts": rfc3339(at_ms - (60 + number % 90) * 1_000),
            "end_ts": rfc3339(at_ms),
            "dur_s": 60 + number % 90,
        },
        "why": {"reason": "demo"},
    }
    return Draft({"type": "deployment.success", "payload": {"service": service, "build": number}}, trailer)


def _consume(stage: Stage, log: GitRepository) -> None:
    with log.consume("reports", NS, 150) as events:
        builds = {event.payload["service"]: event.payload["build"] for event in events}
    stage.show("consumed", f"150 events by group reports; newest builds {builds}")
    try:
        with log.consume("reports", NS) as events:
            next(events)
            raise ConnectionError("the database went away")
    except ConnectionError as error:
        stage.say(f"  a consumer fails ({error}); its position stays")
    with log.consume("reports", NS) as events:
        rest = [event.height for event in events]
    stage.good(f"the same group goes on at event {rest[0]} and reaches {rest[-1]}: none was skipped")


def _verify(stage: Stage, log: GitRepository) -> None:
    key = node_key(log.store.place)
    head, _, _ = sign_log(log, NS, key)
    report = verify_gitlogs(log.store, deep=True, keys=[key.public])
    if not report.ok:
        raise RopewalkError("the demo's own log does not verify")
    passed = sum(step.status == "passed" for step in report.steps)
    stage.good(
        f"{report.entries} entries verify in {passed} steps, a signed head over {head.size} content ids among them"
    )


def _tamper(stage: Stage, log: GitRepository) -> None:
    stage.say("")
    stage.say("  An attacker rewrites the last entry and forces the ref:")
    head = log.store.head(REF)
    assert head is not None
    old = parse_commit(log.store.get(head)[1])
    forged = encode_commit(old).replace(b'"reason":"demo"', b'"reason":"none"')
    oid = object_id("commit", forged)
    with log.store.put([(oid, "commit", forged)]):
        log.store.move_head(REF, head, oid)
    _expect_refusal(stage, "append", lambda: log.append(NS, {"type": "t", "payload": {}}))
    _expect_refusal(stage, "read", lambda: log.read(NS))
    report = verify_gitlogs(log.store)
    failed = [step for step in report.steps if step.status == "failed"]
    if not failed:
        raise RopewalkError("verification accepted a rewritten history")
    stage.refused(f"verify, step {failed[0].name}: {failed[0].detail}")
    log.store.move_head(REF, oid, head)
    stage.good(f"put back, {len(list(log.events(NS)))} events read as before")


def _expect_refusal(stage: Stage, act: str, do: Callable[[], object]) -> None:
    try:
        do()
    except HistoryRewritten as refusal:
        stage.refused(f"{act}: {refusal.code}, {refusal.detail}")
    else:
        raise RopewalkError(f"the {act} accepted a rewritten history")
