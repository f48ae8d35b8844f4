"""A deployment log in a plain git repository: appended, consumed, tampered with, and the refusals."""

from __future__ import annotations

from collections.abc import Callable

from ropewalk.cli.demo.stage import Stage, node_key
from ropewalk.disk.repository_paths import make_repository
from ropewalk.errors import HistoryRewritten, RopewalkError
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


def run(stage: Stage) -> None:
    """Show a log whose history cannot be changed unnoticed."""
    place, _ = make_repository(stage.directory / "demo.git")
    stage.made["repository"] = str(place.git_dir)
    with open_repository(place.git_dir) as log:
        _append(stage, log)
        _consume(stage, log)
        _verify(stage, log)
        _tamper(stage, log)


def _append(stage: Stage, log: GitRepository) -> None:
    first = log.append(NS, {"type": "deployment.success", "payload": {"service": "web", "build": 1}})
    stage.show("appended", f"{first.ulid}  {first.content_id[:19]}…  commit {first.commit[:7]}, on disk")
    drafts = [
        Draft(
            {"type": "deployment.success", "payload": {"service": SERVICES[n % 3], "build": n}},
            {"what": {"service": SERVICES[n % 3]}, "why": {"reason": "demo"}},
        )
        for n in range(2, 202)
    ]
    log.append_all(NS, drafts)
    stage.show("and then", f"{len(drafts)} more in one pack, each its own commit on {REF}")


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
