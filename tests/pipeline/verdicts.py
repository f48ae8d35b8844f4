"""Every way to damage a repository, each with the logs it damages, and every verifier asked about each log."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from ropewalk.disk import key_files
from ropewalk.disk.lmdb_tables import LmdbTables
from ropewalk.disk.repository_paths import find_repository
from ropewalk.errors import RopewalkError
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import LOG_NOTES, MESSAGES
from ropewalk.gitlog.core.notes import add_note
from ropewalk.gitlog.core.objects import FILE, FOLDER, Oid, TreeEntry, encode_tree, parse_commit, parse_tree
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.store.object_store import GitStore
from ropewalk.gossip.core.table import TABLES
from ropewalk.gossip.peer.topics import topic_folder
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import content_id
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.bundle.files import export_bundle, verify_bundle
from ropewalk.ledger.channel.channel import OpenReplica, open_channel, open_log
from ropewalk.ledger.channel.settings import create_channel, read_settings
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.evidence.allowed import EvidenceAllowList
from ropewalk.ledger.evidence.rotation import rotate_evidence
from ropewalk.ledger.evidence.settings import write_evidence
from ropewalk.ledger.evidence.trust import EvidenceSettings
from ropewalk.ledger.keys.rotate import rotate_key
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.rules.policy import parse_policy
from ropewalk.pipeline import to_arrow
from ropewalk.pipeline.jobs.verify import report_checked, settings_checked
from ropewalk.pipeline.source.offsets import Offset
from ropewalk.pipeline.source.query import make_query
from ropewalk.verification import verify as verify_repository
from tests.pipeline.tampering import TAMPERINGS, rewrite_history, unpack
from tests.pipeline.world import ADA, BOB, HOUR_MS, NODE, World, usual

__all__ = ["CASES", "LOGS", "Case", "make_base", "reopened", "verdicts_of"]

PROD = "refs/gatos/shiplog/prod/head"
PENDING = "refs/gatos/messages/jobs/pending/head"
CHAT = "com.example.chat"
RULED = "ruled"
GIT, JOBS, CORE, RULES, TALK = (
    "gitlog/prod",
    "gitlog/jobs/pending",
    "ledger/ea.core",
    f"ledger/{RULED}",
    f"gossip/{CHAT}",
)
LOGS = (GIT, "gitlog/staging", JOBS, CORE, RULES, TALK)
ROWS = ("rows", "spark rows")


@dataclass(frozen=True, slots=True)
class Case:
    """One way to damage a repository: what is done, and which logs are damaged by it.

    `unseen` names the verifiers that do not read what was damaged: rows, bundles and replicas carry entries, and none
    of the tables that are made from them; a bundle and a replica bring the settings they were made with.
    """

    act: Callable[[World], object]
    bad: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def make_base(path: Path) -> World:
    """The usual world with a message that has an attachment, and a channel under a policy whose key was rotated."""
    world = usual(path)
    with open_repository(world.path, now_ms=world.now_ms, entropy=world.entropy) as log:
        raw = b"attached"
        document = {"type": "job.asked", "payload": {"n": 3}, "refs": {"file": content_id(raw)}}
        draft = Draft(document, attachments={"a.txt": raw})
        (outcome,) = log.append_all("jobs/pending", [draft], layout=MESSAGES)
        assert not isinstance(outcome, Exception), outcome
        ran = log.append("staging", {"type": "run", "payload": {}, "refs": {"log": content_id(b"output")}})
        add_note(log.store, LOG_NOTES, ran.commit, b"output", log.author(world.now_ms()))
    home = world.place.home
    create_channel(home, RULED, "node", NODE.public, parse_policy(jcs.encode({"version": 1, "rules": []})))
    world.ledger(RULED, 8)
    rotate_key(home, RULED, NODE, BOB, now_ns=lambda: (world.clock_ms + HOUR_MS) * 10**6)
    world.clock_ms += 2 * HOUR_MS
    _append_ruled(world)
    for topic in ("prod", "staging", "jobs/pending"):
        to_arrow(world.path, topics=topic, columns="position")  # so that index and seen heads are there
    return world


def _append_ruled(world: World) -> None:
    envelope = build(
        ADA,
        domain="ea.core",
        event_class="Observation",
        event_type="test.seen",
        payload={"after": "rotation"},
        timestamp="2024-11-01T12:00:00Z",
    )
    with open_log(world.place.home, RULED, BOB, now_ns=lambda: (world.clock_ms + HOUR_MS) * 10**6) as opened:
        opened.log.submit(envelope.raw)


def reopened(base: World, path: Path) -> World:
    """A copy of the base, for one case."""
    shutil.copytree(base.path, path, symlinks=True)
    return World(path, find_repository(path), base.clock_ms)


# --- who is asked ----------------------------------------------------------------------------------------------------


def verdicts_of(world: World, trust: dict[str, Trust], scratch: Path) -> dict[str, set[str]]:
    """The logs that each verifier refuses. Reading may write an index and the heads that were seen, nothing else."""
    before = _listing(world)
    found = {"verify": _by_verify(world)}
    assert _listing(world) == before, "verify wrote something"
    found["rows"] = set(filter(None, (_by_rows(world, log) for log in LOGS)))
    found["strict rows"] = found["rows"] if _strict_holds(world) != bool(found["rows"]) else {"disagree"}
    found["pipeline verify"] = _by_pipeline(world)
    new = {
        each for each in _listing(world) - before if not each.startswith(("ropewalk/index", "ropewalk/seen"))
    }
    assert not new, f"reading made {sorted(new)}"
    channels = {log: log.removeprefix("ledger/") for log in LOGS if log.startswith("ledger/")}
    found["bundle"] = {
        log for log, name in channels.items() if not _bundle_holds(world, name, trust[name], scratch)
    }
    found["replica"] = {log for log, name in channels.items() if not _replica_holds(world, name, scratch)}
    return found


def _listing(world: World) -> set[str]:
    return {each.relative_to(world.path).as_posix() for each in world.path.rglob("*")}


def _by_verify(world: World) -> set[str]:
    report = verify_repository(world.path, deep=True)
    failed = (step.name for step in report.steps if step.status == "failed")
    names = {"shiplog/": "gitlog/", "messages/": "gitlog/"}
    found = set()
    for name in failed:
        log = name.rpartition(":")[0]
        for prefix, engine in names.items():
            log = engine + log.removeprefix(prefix) if log.startswith(prefix) else log
        if log and not name.endswith(":index"):
            found.add(log)
    return found


def _by_rows(world: World, log: str) -> str | None:
    engine, _, topic = log.partition("/")
    try:
        table = to_arrow(
            world.path, engine=engine, topics=topic, verify="quarantine", columns="verdict,detail"
        )
    except RopewalkError as error:
        assert error.exit_code in (3, 5), error
        return log
    rows = table.to_pylist()
    assert all(row["detail"] for row in rows if row["verdict"] == "failed")
    return log if any(row["verdict"] == "failed" for row in rows) else None


def _strict_holds(world: World) -> bool:
    try:
        to_arrow(world.path, columns="verdict")
    except RopewalkError as error:
        assert error.exit_code == 5, error
        return False
    return True


def _by_pipeline(world: World) -> set[str]:
    """What `pipeline verify` says, log by log, with the ranges checked in this process."""
    found = set()
    for log in LOGS:
        engine, _, topic = log.partition("/")
        options = {"repository": str(world.path), "engine": engine, "topics": topic, "check": "deep"}
        try:
            query = make_query(options | {"rows_per_partition": "3"})
            checked = [
                each.to_row()
                for part in query.ranges()
                for each in query.logs(part.log.engine).check(part, deep=True)
            ]
            report = report_checked(query, checked, {}, Offset())
            beside = settings_checked(query, report, checked)
            if not report.ok or any(step.status == "failed" for step in beside):
                found.add(log)
        except RopewalkError as error:
            assert error.exit_code in (3, 5), error
            found.add(log)
    return found


def _bundle_holds(world: World, channel: str, trust: Trust, scratch: Path) -> bool:
    path = scratch / f"{channel}.tar.zst"
    path.unlink(missing_ok=True)
    try:
        with open_channel(world.place.home, channel) as reading:
            export_bundle(reading, NODE if channel == "ea.core" else BOB, 0, reading.head().height - 1, path)
        return verify_bundle(path, trust, deep=True).report.ok
    except RopewalkError as error:
        assert error.exit_code in (3, 5), error
        return False


def _replica_holds(world: World, channel: str, scratch: Path) -> bool:
    """A copy block by block, as `ledger pull` makes it."""
    home = scratch / f"replica-{channel}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    try:
        settings = read_settings(world.place.home, channel)
        create_channel(home, channel, settings.key, settings.signer, settings.policy)
        now_ns = lambda: (world.clock_ms + 9 * HOUR_MS) * 10**6  # noqa: E731
        with (
            open_channel(world.place.home, channel) as reading,
            OpenReplica(open_channel(home, channel), now_ns=now_ns) as copy,
        ):
            for _, lines in reading.lines():
                copy.log.insert(Block.from_lines(lines))
        return True
    except RopewalkError as error:
        assert error.exit_code in (3, 4, 5, 6, 8), error
        return False


# --- ways to damage --------------------------------------------------------------------------------------------------


def _git(world: World, *arguments: str, given: bytes | None = None) -> str:
    command = ["git", "-C", str(world.place.git_dir), *arguments]
    return subprocess.run(command, check=True, capture_output=True, input=given).stdout.decode().strip()


def _write(world: World, kind: str, raw: bytes) -> Oid:
    return Oid(_git(world, "hash-object", "-t", kind, "-w", "--stdin", "--literally", given=raw))


def _replace_head(world: World, ref: str, change: Callable[[bytes], bytes]) -> None:
    """Another commit in the place of the newest, as a foreign writer could push it."""
    store = GitStore(world.place)
    head = store.head(ref) or ""
    _, raw = store.get(head)
    changed = change(raw)
    assert changed != raw
    _git(world, "update-ref", ref, _write(world, "commit", changed))
    (world.place.home / "seen" / ref).write_text(parse_commit(raw).parents[0] + "\n")


def message(old: bytes, new: bytes, ref: str = PROD) -> Callable[[World], None]:
    return lambda world: _replace_head(world, ref, lambda raw: raw.replace(old, new, 1))


def retree(ref: str, change: Callable[[World, GitStore, Oid], Oid]) -> Callable[[World], None]:
    """The newest commit over another tree."""

    def act(world: World) -> None:
        store = GitStore(world.place)

        def changed(raw: bytes) -> bytes:
            old = parse_commit(raw).tree
            return raw.replace(old.encode(), change(world, store, old).encode(), 1)

        _replace_head(world, ref, changed)

    return act


def _entries(store: GitStore, tree: Oid) -> list[TreeEntry]:
    return list(parse_tree(store.get(tree)[1]))


def add_file(*path: str) -> Callable[[World, GitStore, Oid], Oid]:
    """A file that no envelope names, in a folder of the tree."""

    def change(world: World, store: GitStore, tree: Oid) -> Oid:
        blob = _write(world, "blob", b"stray")

        def within(tree: Oid | None, path: tuple[str, ...]) -> Oid:
            entries = [] if tree is None else _entries(store, tree)
            if len(path) == 1:
                return _write(world, "tree", encode_tree([*entries, TreeEntry(FILE, path[0], blob)]))
            below = next((each.oid for each in entries if each.name == path[0]), None)
            rest = [each for each in entries if each.name != path[0]]
            folder = TreeEntry(FOLDER, path[0], within(below, path[1:]))
            return _write(world, "tree", encode_tree([*rest, folder]))

        return within(tree, path)

    return change


def spaced(world: World, store: GitStore, tree: Oid) -> Oid:
    """The same envelope in bytes that are not canonical."""
    (entry,) = _entries(store, tree)
    if entry.mode == FOLDER:
        return _write(
            world, "tree", encode_tree([TreeEntry(FOLDER, entry.name, spaced(world, store, entry.oid))])
        )
    raw = json.dumps(json.loads(store.get(entry.oid)[1])).encode()
    return _write(world, "tree", encode_tree([TreeEntry(FILE, entry.name, _write(world, "blob", raw))]))


def lose_object(which: str) -> Callable[[World], None]:
    """An object of an event that is gone: `head~3^{tree}`, or a path in it."""

    def act(world: World) -> None:
        found = _git(world, "rev-parse", which)
        unpack(world)
        (world.place.git_dir / "objects" / found[:2] / found[2:]).unlink()

    return act


def merge(raw: bytes) -> bytes:
    parent = raw[raw.index(b"parent ") :].split(b"\n", 1)[0]
    return raw.replace(parent, parent + b"\n" + parent.replace(parent[7:9], b"00"), 1)


def delete_ref(ref: str) -> Callable[[World], object]:
    return lambda world: _git(world, "update-ref", "-d", ref)


def change_note(world: World) -> None:
    """Another output under the event that names the digest of what was kept."""
    with open_repository(world.path, now_ms=world.now_ms, entropy=world.entropy) as log:
        head = log.store.head("refs/gatos/shiplog/staging/head") or ""
        _git(world, "update-ref", "-d", LOG_NOTES)
        add_note(log.store, LOG_NOTES, Oid(head), b"other", log.author(world.now_ms()))


def settings(name: str, raw: bytes | None, channel: str = RULED) -> Callable[[World], None]:
    """A file of a channel's folder with other bytes, or without any."""

    def act(world: World) -> None:
        path = world.place.home / "ledger" / channel / name
        path.unlink(missing_ok=True) if raw is None else path.write_bytes(raw)

    return act


def other_signer(world: World) -> None:
    path = world.place.home / "ledger" / RULED / "channel.json"
    value = json.loads(path.read_bytes())
    path.write_bytes(jcs.encode(value | {"signer": ADA.public.to_json()}))


def make(path: str, raw: bytes | None = None) -> Callable[[World], None]:
    """A folder that belongs to nothing, or a file."""

    def act(world: World) -> None:
        place = world.place.home / path
        if raw is None:
            place.mkdir(parents=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(raw)

    return act


def other_channel(world: World) -> None:
    """The whole log of another channel, which the same key began."""
    ours, theirs = (world.place.home / "ledger" / name for name in ("ea.core", RULED))
    for name in ("segments", "index"):
        shutil.rmtree(ours / name)
        shutil.copytree(theirs / name, ours / name)
    for name in ("receipted", "keys.json"):
        shutil.copy(theirs / name, ours / name)


def other_evidence(world: World) -> None:
    """Settings of evidence that are not those that the channel recorded, where its key is."""
    home, settings = (
        world.place.home,
        [EvidenceSettings((), EvidenceAllowList(builders=(f"urn:{n}",))) for n in range(3)],
    )
    key_files.make(home / "keys", "sealer", "ed25519", b"node" + bytes(28))
    for each in settings[:2]:
        rotate_evidence(home, "ea.core", each, (NODE,), now_ns=lambda: (world.clock_ms + HOUR_MS) * 10**6)
    write_evidence(home, "ea.core", settings[2])


def gossip_row(change: Callable[[Any], None]) -> Callable[[World], None]:
    def act(world: World) -> None:
        tables = LmdbTables(topic_folder(world.place.home, CHAT), TABLES)
        tables.transact(change)
        tables.close()

    return act


def swap_arrivals(view: Any) -> None:
    (first, one), (second, two) = sorted(view.scan("arrivals"))[2:4]
    view.put("arrivals", first, two)
    view.put("arrivals", second, one)


def drop_last_arrival(view: Any) -> None:
    view.delete("arrivals", max(key for key, _ in view.scan("arrivals")))


def drop_head(view: Any) -> None:
    view.delete("heads", next(key for key, _ in view.scan("heads")))


def spoil_index(world: World) -> None:
    """A record of the git index with other bytes."""
    with lmdb.open(str(world.place.home / "index"), max_dbs=0) as env, env.begin(write=True) as txn:
        for key, value in list(txn.cursor()):
            if key[:1] == b"h":
                txn.put(key, bytes(8) + value[8:])


CASES: dict[str, Case] = {
    "nothing": Case(lambda _world: None),
    **{
        name: Case(each.act, bad=({"gitlog": GIT, "ledger": CORE, "gossip": TALK}[each.engine],))
        for name, each in TAMPERINGS.items()
    },
    # headers of commits
    "envelope schema": Case(message(b"event_envelope.schema", b"other.schema"), (GIT,)),
    "trailer schema": Case(message(b"deployment_trailer.schema", b"other.schema"), (GIT,)),
    "no schema header": Case(message(b"\nEnvelope-Schema:", b"\nEnvelope-Other:"), (GIT,)),
    "other namespace": Case(message(b"Namespace: prod", b"Namespace: test"), (GIT,)),
    "no event id": Case(message(b"Event-Id: ulid:", b"Event-No: ulid:"), (GIT,)),
    "other content id": Case(message(b"Content-Id: blake3:", b"Content-Id: blake3:0"), (GIT,)),
    "message without event id": Case(message(b"Event-Id: ulid:", b"Event-No: ulid:", PENDING), (JOBS,)),
    "other seq": Case(message(b'"seq":11', b'"seq":12'), (GIT,)),
    "other journal parent": Case(message(b'"journal_parent":"', b'"journal_parent":"0'), (GIT,)),
    "no trailer": Case(message(b"\n---\n", b"\n\n"), (GIT,)),
    "two parents": Case(lambda world: _replace_head(world, PROD, merge), (GIT,)),
    # trees and blobs
    "stray file": Case(retree(PENDING, add_file("stray")), (JOBS,)),
    "stray file beside the envelope": Case(retree(PENDING, add_file("message", "stray")), (JOBS,)),
    "unnamed attachment": Case(retree(PENDING, add_file("message", "attachments", "b.txt")), (JOBS,)),
    "lost attachment": Case(lose_object(f"{PENDING}:message/attachments/a.txt"), (JOBS,)),
    # A row's envelope is proven by hashing the trees that must lead to it; only verifiers read them as well.
    "lost tree": Case(lose_object(f"{PROD}~3^{{tree}}"), (GIT,), unseen=("rows",)),
    "spaced envelope": Case(retree(PROD, spaced), (GIT,)),
    # heads
    "vanished ref": Case(delete_ref(PROD), (GIT,)),
    "vanished topic": Case(delete_ref(PENDING), (JOBS,)),
    "damaged seen": Case(make(f"seen/{PROD}", b"no commit"), (GIT,)),
    "damaged index": Case(spoil_index),
    "rewritten history": Case(rewrite_history, ()),
    "changed note": Case(change_note, ("gitlog/staging",), unseen=("rows",)),
    # settings of channels
    "no policy": Case(settings("policy.json", None), (RULES,)),
    "other policy": Case(
        settings("policy.json", b'{"capability_matrix":{"versions":["1.0.x"]},"rules":[],"version":1}'),
        (RULES,),
    ),
    "no settings": Case(settings("channel.json", None), (RULES,)),
    "torn settings of the other": Case(settings("channel.json", b"{"), (RULES,)),
    "other signer": Case(other_signer, (RULES,), unseen=("bundle",)),
    "log of another channel": Case(other_channel, (CORE,)),
    "no key list": Case(settings("keys.json", None), (RULES,), unseen=("bundle", "replica")),
    "torn key list": Case(settings("keys.json", b"{"), (RULES,), unseen=("replica",)),
    "torn evidence settings": Case(settings("evidence.json", b"{"), (RULES,), unseen=("bundle", "replica")),
    "other evidence settings": Case(other_evidence, (CORE,), unseen=("rows", "bundle", "replica")),
    "torn lifecycle": Case(
        make("ledger/lifecycle.json", b"{"),
        (CORE, RULES),
        unseen=("rows", "bundle", "replica"),  # no sealed block is judged by it
    ),
    # folders that belong to nothing
    "stray folder of ledgers": Case(make("ledger/stray")),
    "stray folder of gossip": Case(make("gossip/stray")),
    "stray file of gossip": Case(make("gossip/stray/note.txt", b"hello")),
    # tables of gossip
    "swapped arrivals": Case(gossip_row(swap_arrivals), (TALK,)),
    "no last arrival": Case(gossip_row(drop_last_arrival), (TALK,)),
    "no head": Case(gossip_row(drop_head), (TALK,), unseen=("rows",)),
}
