"""kill −9 in the middle of batched inserts and syncs: nothing acknowledged is lost, nothing half written is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tools import needs, needs_that
from tests.waiting import LIMIT_S, ended

from ropewalk.disk.lmdb_tables import LmdbTables
from ropewalk.errors import Unavailable
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.table import TABLES
from ropewalk.gossip.core.verify import verify_log
from ropewalk.gossip.peer.topics import open_log
from ropewalk.gossip.sync.session import pull_from
from ropewalk.kernel.keys import SigningKey

KEY = SigningKey.generate("ed25519", bytes([5] * 32))
TOPIC = "com.example.kill"

# Each line it prints is a promise: the ids of one batch, after the call that made them durable has returned.
WRITER = """
import sys
from ropewalk.gossip.sync.session import pull_from
from ropewalk.kernel.keys import SigningKey
from ropewalk.gossip.peer.topics import open_log
mode, path, source = sys.argv[1:4]
key = SigningKey.generate("ed25519", bytes([5] * 32))
log = open_log("com.example.kill", path, signer=key)
other = open_log("com.example.kill", source)
def say(ids):
    sys.stdout.write(" ".join(ids) + "\\n")
    sys.stdout.flush()
say([])
if mode == "append":
    for n in range(10_000):
        say([stored.id for stored in log.append_many([{"n": n, "i": i} for i in range(20)])])
elif mode == "insert":
    raws = [signed.raw for signed in other.iterate()]
    for start in range(0, len(raws), 50):
        say([outcome.id for outcome in log.insert_many(raws[start:start + 50])])
else:
    from ropewalk.gossip import sync
    from ropewalk.gossip.core.events import Committed
    sync.CHUNK_MESSAGES = 40
    log.on(lambda event: say([signed.id for _, signed in log.arrivals()]), Committed)
    pull_from(log, other)
"""


def run_and_kill(mode: str, path: Path, source: Path, after_lines: int) -> set[str]:
    """Start a writer, kill it after some promises, and return what it promised."""
    command = [sys.executable, "-c", WRITER, mode, str(path), str(source)]
    with ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as child:
        assert child.stdout is not None
        promised: set[str] = set()
        for _ in range(after_lines):
            line = child.stdout.readline()
            if not line.endswith("\n"):
                break
            promised.update(line.split())
        child.kill()
        for line in child.stdout:  # promises made before the signal arrived count as well
            if line.endswith("\n"):
                promised.update(line.split())
        return promised


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "db"
    with open_log(TOPIC, path, signer=KEY) as log:
        for start in range(0, 1200, 100):
            log.append_many(range(start, start + 100))
    return path


@pytest.mark.parametrize("mode", ["append", "insert", "sync"])
def test_a_killed_writer_keeps_its_promises(mode: str, tmp_path: Path, source: Path):
    chance = random.Random(mode)
    promised: set[str] = set()
    for _ in range(3):
        promised |= run_and_kill(mode, tmp_path / "db", source, chance.randint(2, 6))
        with open_log(TOPIC, tmp_path / "db") as log:
            assert promised <= {signed.id for signed in log.iterate()}
            report = verify_log(log)
            assert report.ok, report
    assert promised
    if mode != "append":
        with open_log(TOPIC, tmp_path / "db") as log, open_log(TOPIC, source) as whole:
            pull_from(log, whole)
            assert log.root() == whole.root()


def test_every_failing_write_leaves_the_log_as_it_was(tmp_path: Path):
    """Fail the first write of a batch, then the second, and so on until the batch gets through."""

    class Failing(LmdbTables):
        left = 10**9

        def transact(self, body):
            def counted(change):
                real = change.put

                class Counting:
                    def __getattr__(self, name: str):
                        return getattr(change, name)

                    def put(self, table: str, key: bytes, value: bytes) -> None:
                        tables.left -= 1
                        if tables.left < 0:
                            raise Unavailable("the disk is gone")
                        real(table, key, value)

                return body(Counting())

            return super().transact(counted)

    tables = Failing(tmp_path / "db", TABLES)
    log = GossipLog(tables, TOPIC, signer=KEY)
    log.append_many(range(30))
    before = (log.root(), log.heads(), len(log))
    failures = 0
    while True:
        tables.left = failures
        try:
            log.append_many("ab")
            break
        except Unavailable:
            failures += 1
            assert (log.root(), log.heads(), len(log)) == before
    tables.left = 10**9
    assert failures > 8
    assert verify_log(log).ok
    assert len(log) == 32
    log.close()


def test_a_reader_in_another_process_never_sees_half_a_batch(tmp_path: Path):
    """While one process writes batches of twenty, every count another one reads is a multiple of twenty."""
    with open_log(TOPIC, tmp_path / "source"):
        pass
    command = [sys.executable, "-c", WRITER, "append", str(tmp_path / "db"), str(tmp_path / "source")]
    seen: set[int] = set()
    with ended(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "\n"
        with open_log(TOPIC, tmp_path / "db") as log:
            while len(seen) < 6:  # it may be far ahead of what it says, and stand still until somebody reads
                assert writer.stdout.readline(), "it has ended"
                with log.view() as view:
                    count = view.count("messages")
                    assert count % 20 == 0
                    assert count == view.count("arrivals")
                    assert len(list(view.scan("heads"))) == 1
                    seen.add(count)
            writer.kill()
            writer.wait()
            assert verify_log(log).ok


# LMDB ends a commit by writing one of two small pages at the front of the file, and then says so in memory that the
# processes share. This kills between the two: on disk the commit stands, and readers that are open do not see it yet.
KILL_AFTER_META = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
ssize_t pwrite(int file, const void *bytes, size_t size, off_t at) {
  static ssize_t (*real)(int, const void *, size_t, off_t);
  static int count;
  if (!real) real = dlsym(RTLD_NEXT, "pwrite");
  ssize_t done = real(file, bytes, size, at);
  if (size < 4096 && at < 8192 && ++count == atoi(getenv("KILL_AFTER"))) kill(getpid(), SIGKILL);
  return done;
}
ssize_t pwrite64(int file, const void *bytes, size_t size, off_t at) { return pwrite(file, bytes, size, at); }
"""


@needs("cc")
@needs_that(sys.platform == "linux", "preloaded libraries are those of Linux")
@pytest.mark.parametrize("after", ["the open one", "another process"])
def test_commit_cut_at_last_act_counts_once(tmp_path: Path, after: str):
    """Whoever writes next goes on from what is on disk, so no cursor that anybody saw means two messages."""
    code, preload = tmp_path / "kill.c", tmp_path / "kill.so"
    code.write_text(KILL_AFTER_META)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(preload), str(code), "-ldl"], check=True, timeout=LIMIT_S
    )
    with open_log(TOPIC, tmp_path / "source"):
        pass
    arguments = [sys.executable, "-c", WRITER, "append", str(tmp_path / "db"), str(tmp_path / "source")]
    hidden = 0
    with open_log(TOPIC, tmp_path / "db", signer=KEY) as log:
        log.append("first")
        for count in range(1, 7):
            environment = {**os.environ, "LD_PRELOAD": str(preload), "KILL_AFTER": str(count)}
            killed = subprocess.run(
                arguments, env=environment, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S
            )
            assert killed.returncode == -signal.SIGKILL
            promised = set(killed.stdout.split())
            seen = {cursor: signed.id for cursor, signed in log.arrivals()}
            assert promised <= set(seen.values())
            if after == "the open one":
                log.append({"after": count})
            else:
                with ended(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)) as next_one:
                    assert next_one.stdout is not None
                    for _ in range(3):
                        promised.update(next_one.stdout.readline().split())
            now = {cursor: signed.id for cursor, signed in log.arrivals()}
            assert seen.items() <= now.items()
            assert promised <= set(now.values())
            hidden += after == "the open one" and len(now) > len(seen) + 1
    with open_log(TOPIC, tmp_path / "db") as log:
        report = verify_log(log)
        assert report.ok, report
    assert hidden or after == "another process", "no commit was cut off where it should be"
