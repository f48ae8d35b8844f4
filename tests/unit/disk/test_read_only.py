"""Where nobody may write: a ledger is read, proved, verified and exported all the same; a topic says what to do."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.tools import skip_without_rights
from tests.unit.ledger.making import command, observed, opened

from ropewalk.errors import Unavailable
from ropewalk.ledger.channel.channel import open_channel

ROOT = Path(__file__).resolve().parents[3]

# Root may write everywhere; without this capability it is a user like any other.
AS_A_USER = (
    ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"] if os.geteuid() == 0 else []
)

TOPIC = """
import sys
from pathlib import Path
from ropewalk.errors import Unavailable
from ropewalk.gossip.peer.topics import open_topic
try:
    open_topic(Path(sys.argv[1]), "com.example", create=False)
except Unavailable as error:
    print("copy the repository" in error.advice_now)
"""

LEDGER = """
import sys, tempfile
from pathlib import Path
from tests.unit.ledger.making import NODE
from ropewalk.ledger.proof.proof import verify_proof
from ropewalk.ledger.bundle.files import export_bundle
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.ledger.channel.index import index as ledgerindex
ledgerindex.FLUSH_ENVELOPES = 3  # so that what is added does not stay in memory
home = Path(sys.argv[1])
with open_channel(home, "ea.core") as channel:
    trust = channel.settings.trust()
    for envelope_id in sys.argv[2:]:
        assert verify_proof(channel.prove(bytes.fromhex(envelope_id)), trust).ok
    head = channel.head()
    channel.prove_range(0, head.height - 1).verify()
    channel.prove_consistency(1, head.height).verify()
    assert export_bundle(channel, NODE, 0, head.height - 1, Path(tempfile.gettempdir()) / "b.tar.zst").size
    print(head.height, head.envelopes, head.block_hash.hex())
report = verify_stored(home, "ea.core", deep=True)
print(report.ok, next(step.status for step in report.steps if step.name == "index"))
print([path for path in Path(tempfile.gettempdir()).glob("ropewalk-index-*")])
"""


GIT_INDEX = """
import os, sys
from pathlib import Path
from ropewalk.gitlog.store.index import GitIndex
index = GitIndex(Path("/dev/null/index"))
folder = index._folder
with index._mutex:  # as another thread would, at the moment of the fork
    child = os.fork()
    if child == 0:
        index.extent("refs/heads/main")
        index.close()
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), folder.is_dir())
"""


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    try:
        subprocess.run([*AS_A_USER, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        skip_without_rights("this root cannot be made a user")
    subprocess.run(["chmod", "-R", "a-w", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["chmod", "-R", "u+w", folder], check=True)


def as_a_user(script: str, *arguments: str, scratch: Path) -> list[str]:
    scratch.mkdir(exist_ok=True)
    done = subprocess.run(
        [*AS_A_USER, sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_topic_that_may_not_be_written_is_unavailable(tmp_path):
    from tests.unit.gossip.conftest import key

    from ropewalk.gossip.peer.topics import open_topic

    with open_topic(tmp_path / "home", "com.example", create=True, signer=key(1)) as log:
        log.append("hello")
    with unwritable(tmp_path / "home"):
        assert as_a_user(TOPIC, str(tmp_path / "home"), scratch=tmp_path / "scratch") == ["True"]


@pytest.mark.parametrize("index", ["whole", "behind", "missing", "unreadable", "torn"])
def test_a_ledger_that_may_not_be_written_is_read_proved_and_verified(tmp_path, index):
    home, ids = tmp_path / "home", []
    kept = tmp_path / "kept"
    stored = home / "ledger" / "ea.core" / "index"
    for part in range(2):
        with opened(home) as ledger:
            made = [command(f"c-{part}-{i}") if i % 2 else observed(part * 10 + i) for i in range(5)]
            assert all(hasattr(each, "height") for each in ledger.log.submit_many(one.raw for one in made))
            ids += [one.hex_id for one in made]
        if part == 0:
            shutil.copytree(stored, kept)
    with open_channel(home, "ea.core") as channel:
        head = channel.head()
    if index in ("behind", "missing"):
        shutil.rmtree(stored)
    if index == "behind":
        shutil.copytree(kept, stored)
    elif index == "torn":
        (rows,) = stored.glob("*.rows")
        rows.write_bytes(rows.read_bytes()[:100])
    elif index == "unreadable":
        for path in stored.iterdir():
            path.chmod(0)
    with unwritable(home):
        said = as_a_user(LEDGER, str(home), *ids, scratch=tmp_path / "scratch")
    assert said[0] == f"{head.height} {head.envelopes} {head.block_hash.hex()}"
    expected = {"whole": "passed", "behind": "passed", "missing": "not_checked", "torn": "failed"}
    assert index == "unreadable" or said[1] == f"{index != 'torn'} {expected[index]}"
    assert said[2] == "[]"  # nothing private is left behind


def test_forked_child_reads_and_parent_writes(tmp_path):
    with opened(tmp_path) as ledger, open_channel(tmp_path, "ea.core") as channel:
        ledger.log.submit_many(observed(i).raw for i in range(40))
        ledger.index.flush()
        first = channel.prove(observed(3).id)  # its index has a reader's place now
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert channel.prove(observed(3).id) == first
                channel.close()
                with pytest.raises(Unavailable):
                    ledger.log.submit_many(observed(i).raw for i in range(100, 140))
                ledger.close()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert channel.prove(observed(4).id).height == first.height
        assert ledger.log.submit(observed(200).raw).height == 1
        with open_channel(tmp_path, "ea.core") as again:
            assert again.head().height == 2
    with opened(tmp_path) as ledger:  # the child has not kept the lock, and nothing was torn
        assert ledger.torn is None and ledger.log.submit(observed(201).raw).height == 2


def test_index_forked_child_reads_after_removal(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.log.submit_many(observed(i).raw for i in range(40))
    with open_channel(tmp_path, "ea.core") as channel:
        first = channel.prove(observed(3).id)
        shutil.rmtree(tmp_path / "ledger/ea.core/index")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert channel.prove(observed(3).id) == first
                channel.close()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_ending_child_keeps_index_of_parent():
    done = subprocess.run(
        [sys.executable, "-c", GIT_INDEX], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.split() == ["0", "True"], done.stderr


def test_a_child_that_outlives_the_writer_does_not_keep_its_lock(tmp_path):
    hold, release = os.pipe()
    ledger = opened(tmp_path)
    # A child of a foreign library runs none of Python's fork hooks, so it keeps its copy of the descriptor.
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        os.close(release)
        os.read(hold, 1)  # until the parent has gone on
        os._exit(0)
    os.close(hold)
    try:
        ledger.log.submit(observed(1).raw)
        ledger.close()
        with opened(tmp_path) as again:
            assert again.log.submit(observed(2).raw).height == 1
    finally:
        os.close(release)
        os.waitpid(child, 0)
