"""gitlog beside its peers: git plumbing by shell, `git fast-import`, Redis Streams, walking the chain, `cat-file`.

Every peer does the same job: the same events, one commit each in the same tree layout, durable where ours is.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.gitlog_redis import redis_batches
from bench.harness import Contestant, Result, compare, fixed
from ropewalk.disk.repository_paths import make_repository
from ropewalk.gitlog.core.commit import parse_message
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.core.objects import parse_commit
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel import jcs, ulid
from ropewalk.kernel.digest import content_id

REF = SHIPLOG.head_ref("demo")
# What `git shiplog` does for an entry, with the envelope in the tree: seven processes, then the ref by CAS.
PLUMBING = r"""
set -e
zero=0000000000000000000000000000000000000000
cd "$1"; export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
for n in $(seq "$2"); do
  blob=$(git -c core.fsync=all hash-object -w --stdin < "$3")
  t1=$(printf '100644 blob %s\t%s.json\n' "$blob" "$n" | git -c core.fsync=all mktree)
  t2=$(printf '040000 tree %s\tdemo\n' "$t1" | git -c core.fsync=all mktree)
  t3=$(printf '040000 tree %s\tshiplog\n' "$t2" | git -c core.fsync=all mktree)
  t4=$(printf '040000 tree %s\tgatos\n' "$t3" | git -c core.fsync=all mktree)
  old=$(git rev-parse -q --verify refs/gatos/shiplog/demo/head || true)
  new=$(git -c core.fsync=all commit-tree ${old:+-p $old} -m "Event-Id: ulid:$n" "$t4")
  git -c core.fsync=all update-ref refs/gatos/shiplog/demo/head "$new" "${old:-$zero}"
done
"""
# glibc gives memory back so eagerly that fast-import spends most of its time in page faults; these settings stop it.
TUNED = {
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
}


def event(n: int) -> dict[str, Any]:
    """An event of about one kilobyte, half of it chance."""
    chance = random.Random(n)
    return {
        "type": "order.placed",
        "payload": {"n": n, "id": chance.randbytes(220).hex(), "text": "lorem ipsum " * 36},
    }


class Field:
    """A folder of fresh repositories."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ropewalk-bench-gitlog-"))
        self._names = itertools.count()
        self._ready: list[Path] = []

    def prepare(self, count: int) -> None:
        """Make repositories ahead of time: making one is not part of any job."""
        self._ready += [
            make_repository(self.folder / f"{next(self._names)}.git")[0].git_dir for _ in range(count)
        ]

    def fresh(self) -> Path:
        if not self._ready:
            self.prepare(1)
        return self._ready.pop()

    def opened(self) -> GitRepository:
        return open_repository(self.fresh())


def appends(field: Field, quick: bool) -> Iterator[Result]:
    file = field.folder / "event.json"
    file.write_bytes(jcs.encode(event(1)))
    shell_events = 5 if quick else 15

    def plumbing() -> int:
        where = field.fresh()
        subprocess.run(
            ["bash", "-c", PLUMBING, "bash", where, str(shell_events), file], check=True, capture_output=True
        )
        return shell_events

    def one_at_a_time() -> int:
        with field.opened() as log:
            for n in range(30):
                log.append("demo", event(n))
        return 30

    def crowd() -> int:
        each = 8 if quick else 25
        with field.opened() as log:

            def write(start: int) -> None:
                for n in range(start, start + each):
                    log.append("demo", event(n))

            crew = [threading.Thread(target=write, args=(n * each,)) for n in range(64)]
            for thread in crew:
                thread.start()
            for thread in crew:
                thread.join()
        return 64 * each

    rounds = 2 if quick else 5
    field.prepare(4 * (rounds + 1))
    shell = Contestant("git plumbing by shell, core.fsync=all", plumbing)
    yield from compare(
        "durable append, 64 concurrent writers",
        Contestant("ropewalk, group commit", crowd),
        [shell],
        target=50,
        rounds=rounds,
        unit="events",
    )
    yield from compare(
        "durable append, one at a time",
        Contestant("ropewalk", one_at_a_time),
        [shell],
        target=2,
        rounds=rounds,
        unit="events",
    )


def stream(count: int) -> bytes:
    """What fast-import reads to make the same commits."""
    parts: list[bytes] = []
    last = None
    for n in range(count):
        last = ulid.next_ulid(last, 1_700_000_000_000 + n, bytes(10))
        raw = jcs.encode({**event(n), "ulid": last, "ns": "demo"})
        message = (
            f"Event-Id: ulid:{last}\nContent-Id: {content_id(raw)}\nNamespace: demo\nEnvelope-Schema: "
            "https://gatos.dev/schemas/v1/shiplog/event_envelope.schema.json\nTrailer-Schema: "
            "https://gatos.dev/schemas/v1/shiplog/deployment_trailer.schema.json\n---\n"
            f'{{"env":"demo","journal_parent":"{n:040x}","seq":{n},"status":"success","version":1,"when":'
            '{"dur_s":0,"end_ts":"2026-11-15T21:16:37Z","start_ts":"2026-11-15T21:16:37Z"}}\n'
        ).encode()
        parts.append(
            b"commit %s\ncommitter a <a@b> %d +0000\ndata %d\n%s\n"
            b"deleteall\nM 100644 inline gatos/shiplog/demo/%s.json\ndata %d\n%s\n"
            % (REF.encode(), 1_700_000_000 + n, len(message), message, last.encode(), len(raw), raw)
        )
    return b"".join(parts) + b"done\n"


def batches(field: Field, quick: bool) -> Iterator[Result]:
    """Everybody starts with what a program has: a file for fast-import, and documents for us and for Redis, ours yet to
    be checked, made canonical and named, because that is what we are for.
    """
    prepared = field.folder / "stream"
    prepared.write_bytes(stream(1_000))
    drafts = [Draft(event(n)) for n in range(1_000)]

    logs: list[GitRepository] = []

    def ours() -> int:
        logs.append(field.opened())
        logs[-1].append_all("demo", drafts)
        return len(drafts)  # every event is on disk; closing is housekeeping and comes later

    def fast_import(environment: dict[str, str]) -> int:
        where = field.fresh()
        command = ["git", "-c", "core.fsync=all", "fast-import", "--quiet", "--done"]
        with prepared.open("rb") as source:
            subprocess.run(command, cwd=where, stdin=source, check=True, env={**os.environ, **environment})
        return len(drafts)

    rounds = 3 if quick else 7
    field.prepare(6 * (rounds + 1))
    contestant = Contestant("ropewalk, one append_all", ours)
    stock = Contestant("git fast-import, stock", lambda: fast_import({}))
    tuned = Contestant("git fast-import, malloc-tuned", lambda: fast_import(TUNED))
    both = compare(
        "batch of 1,000, 1 KB events", contestant, [stock, tuned], target=None, rounds=rounds, unit="events"
    )
    for result, target in zip(both, (3, 0.7), strict=True):
        yield replace(result, target=target)
    for log in logs:
        log.close()
    logs.clear()
    with redis_batches([event(n) for n in range(1_000)]) as redis, field.opened() as log:
        if redis is None:
            print("  skipped: Redis Streams, because no redis-server is on PATH", file=sys.stderr)
            return

        def onto_open_log() -> int:
            log.append_all("demo", drafts)  # as Redis: the log is open and grows from round to round
            return len(drafts)

        both = compare(
            "batch of 1,000, durable",
            Contestant("ropewalk, one append_all to an open log", onto_open_log),
            [
                Contestant("Redis Streams, appendfsync always, redis-py pipeline", redis.documents_by_client),
                Contestant("Redis Streams, appendfsync always, raw socket, pipeline", redis.pipeline),
                Contestant("Redis Streams, appendfsync always, raw socket, MULTI", redis.transaction),
            ],
            target=1,
            rounds=rounds,
            unit="events",
        )
        # The target is for what a program does; bytes made ready beforehand are shown beside it.
        yield both[0]
        yield from (replace(each, target=None) for each in both[1:])


def reading(field: Field, quick: bool) -> Iterator[Result]:
    count = 5_000 if quick else 100_000
    log = field.opened()
    for start in range(0, count, 1_000):
        log.append_all("demo", [Draft(event(n)) for n in range(start, start + 1_000)])
    names = [place.ulid for place in log.lines.line(SHIPLOG, "demo").span(0, count)]
    where = log.store.place.git_dir
    chance = random.Random(3)

    def seek() -> int:
        for _ in range(200):
            wanted = chance.randrange(count - 1)
            assert log.read("demo", names[wanted], 1).events[0].height == wanted + 1
        return 200

    def walk() -> int:
        wanted = names[count // 2]  # the middle: half the chain on average
        at = log.store.head(REF)
        while at is not None:
            commit = parse_commit(log.store.get(at)[1])
            if parse_message(commit.message).ulid == wanted:
                return 1
            at = commit.parents[0] if commit.parents else None
        raise AssertionError("the event was not found")

    yield from compare(
        f"seek by ULID in {count:,} events",
        Contestant("ropewalk, index", seek),
        [Contestant("walking the chain", walk)],
        target=1_000 if not quick else None,
        rounds=3,
        unit="seeks",
    )

    def ours() -> int:
        return sum(1 for _ in log.events("demo"))

    def git() -> int:
        command = f"git rev-list --reverse --objects {REF} | cut -d' ' -f1 | git cat-file --batch --buffer | tail -c 1"
        subprocess.run(["bash", "-c", command], cwd=where, check=True, capture_output=True)
        return count

    yield from compare(
        f"read {count:,} events in order",
        Contestant("ropewalk, hashed again", ours),
        [Contestant("git rev-list | git cat-file --batch", git)],
        target=0.5,
        rounds=3,
        unit="events",
    )
    log.close()


MEMORY = """
import json, sys
from bench.bench_gitlog import event
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.repository.opening import open_repository
def resident():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(fields["RssAnon"].split()[0]) // 1024
log, report, done = open_repository(sys.argv[1]), {}, 0
for size in map(int, sys.argv[2:]):
    while done < size:
        log.append_all("demo", [Draft(event(n)) for n in range(done, done + 1000)])
        done += 1000
    appended = resident()
    assert sum(1 for _ in log.events("demo")) == size
    report[size] = {"append_mb": appended, "read_mb": resident()}
print(json.dumps(report))
"""


def memory(field: Field, quick: bool) -> Result | None:
    """Resident memory of our own (not mapped files) while a log grows, in a process of its own."""
    if not Path("/proc/self/status").exists():
        return None
    sizes = ("1000", "5000") if quick else ("1000", "10000", "100000", "1000000")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, field.fresh(), *sizes], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    first, last = report[sizes[0]]["read_mb"], report[sizes[-1]]["read_mb"]
    note = ", ".join(
        f"{int(n):,} events: {held['append_mb']}/{held['read_mb']} MB" for n, held in report.items()
    )
    result = fixed(
        "memory stays flat (MB after append/read)",
        f"{int(sizes[-1]):,} events",
        f"{int(sizes[0]):,} events",
        first,
        last,
        None,
        "MB",
        note,
    )
    result.extra.update(report)
    return result


def run(quick: bool) -> list[Result]:
    """Every job of the table; sizes are small when `quick`."""
    field = Field()
    try:
        results = [*appends(field, quick), *batches(field, quick), *reading(field, quick)]
        flat = memory(field, quick)
        return [*results, flat] if flat is not None else results
    finally:
        shutil.rmtree(field.folder, ignore_errors=True)
