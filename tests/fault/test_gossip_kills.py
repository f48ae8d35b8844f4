"""kill −9 in the middle of batched inserts and syncs: nothing acknowledged is lost, nothing half written is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.errors import Unavailable
from ropewalk.gossip.log import TABLES, Log
from ropewalk.gossip.sync import pull_from
from ropewalk.gossip.verify import verify_log
from ropewalk.kernel.keys import SigningKey
from ropewalk.node.gossip import open_log
from ropewalk.stores.lmdb import LmdbTables

KEY = SigningKey.generate("ed25519", bytes([5] * 32))
TOPIC = "com.example.kill"

# Each line it prints is a promise: the ids of one batch, after the call that made them durable has returned.
WRITER = """
import sys
from ropewalk.gossip.sync import pull_from
from ropewalk.kernel.keys import SigningKey
from ropewalk.node.gossip import open_log
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
    from ropewalk.gossip.events import Committed
    sync.CHUNK_MESSAGES = 40
    log.on(lambda event: say([signed.id for _, signed in log.arrivals()]), Committed)
    pull_from(log, other)
"""


def run_and_kill(mode: str, path: Path, source: Path, after_lines: int) -> set[str]:
    """Start a writer, kill it after some promises, and return what it promised."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, mode, str(path), str(source)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    promised: set[str] = set()
    for _ in range(after_lines):
        line = child.stdout.readline()
        if not line.endswith("\n"):
            break
        promised.update(line.split())
    os.kill(child.pid, signal.SIGKILL)
    for line in child.stdout:  # promises made before the signal arrived count as well
        if line.endswith("\n"):
            promised.update(line.split())
    child.stdout.close()
    child.wait()
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
    log = Log(tables, TOPIC, signer=KEY)
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
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, "append", str(tmp_path / "db"), str(tmp_path / "source")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    seen = set()
    with open_log(TOPIC, tmp_path / "db") as log:
        for _ in range(6):
            writer.stdout.readline()
            with log.view() as view:
                count = view.count("messages")
                assert count % 20 == 0
                assert count == view.count("arrivals")
                assert len(list(view.scan("heads"))) == 1
                seen.add(count)
        writer.kill()
        writer.stdout.close()
        writer.wait()
        assert len(seen) > 1
        assert verify_log(log).ok
