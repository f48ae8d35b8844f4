"""Folders of one process: a killed owner's are swept by the next, a living owner's never."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tools import skip_without_rights

MAKE = """
import sys
from ropewalk.disk.temporary_folder import make_private_folder
for _ in range(int(sys.argv[1])):
    folder = make_private_folder(*sys.argv[2:])
    (folder / "data.mdb").write_bytes(b"x")
    print(folder, flush=True)
sys.stdin.read()
"""

FORK = """
import os, sys
from ropewalk.disk.temporary_folder import make_private_folder
folder = make_private_folder()
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print(folder, flush=True)
os.kill(os.getpid(), 9)
"""

REMOVE_IN_A_CHILD = """
import os
from ropewalk.disk.temporary_folder import make_private_folder, drop_private_folder
folder = make_private_folder()
child = os.fork()
if child == 0:
    drop_private_folder(folder)
    raise SystemExit
os.waitpid(child, 0)
print(folder.is_dir())
drop_private_folder(folder)
print(folder.is_dir())
"""


@contextmanager
def owner(
    script: str, scratch: Path, count: int = 1, *what: str
) -> Iterator[tuple[subprocess.Popen[str], list[Path]]]:
    """A process that makes folders and stays until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(count), *what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert process.stdout is not None
    try:
        yield process, [Path(process.stdout.readline().strip()) for _ in range(count)]
    finally:
        process.kill()
        process.communicate()


def use_once(scratch: Path) -> None:
    """What any command does that needs a private index: make one, and end."""
    done = subprocess.run(
        [sys.executable, "-c", MAKE, "1"],
        input="",
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert not Path(done.stdout.strip()).exists()


def test_what_a_killed_process_left_is_gone_after_the_next_use(tmp_path):
    with owner(MAKE, tmp_path) as (process, (folder,)):
        process.kill()
        process.wait()
        assert (folder / "data.mdb").exists()
        use_once(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_private_folder_sweeps_stale_folders(tmp_path):
    with owner(MAKE, tmp_path, 1, "jvm") as (process, (folder,)):
        assert folder.name.startswith("ropewalk-jvm-")
        process.kill()
        process.wait()
        use_once(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_living_process_is_never_swept(tmp_path):
    with owner(MAKE, tmp_path) as (process, (folder,)):
        for _ in range(3):
            use_once(tmp_path)
        assert (folder / "data.mdb").read_bytes() == b"x"
        process.communicate()
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_outlives_its_killed_parent_keeps_the_folder(tmp_path):
    with owner(FORK, tmp_path) as (process, (folder,)):
        process.wait()  # killed, while its child goes on
        use_once(tmp_path)
        assert folder.is_dir()
        process.communicate()  # ends the child, which holds the other end
        for _ in range(100):  # its lock goes with it, a moment after its output
            use_once(tmp_path)
            if not folder.exists():
                break
        assert not folder.exists()


def test_each_use_sweeps_a_bounded_number(tmp_path):
    with owner(MAKE, tmp_path, 20) as (process, folders):
        process.kill()
        process.wait()
        left = [20]
        while left[-1]:
            use_once(tmp_path)
            left.append(sum(folder.exists() for folder in folders))
            assert left[-1] < left[-2]
    assert left == [20, 12, 4, 0]


def test_what_is_not_ours_is_left_alone(tmp_path):
    precious = tmp_path / "ropewalk-index-precious"
    precious.mkdir()
    (tmp_path / "target").write_text("x")
    (tmp_path / "ropewalk-index-precious.owner").symlink_to(tmp_path / "target")
    (tmp_path / "ropewalk-index-alone").mkdir()
    (tmp_path / "other.owner").write_text("x")
    os.mkfifo(tmp_path / "ropewalk-index-pipe.owner")
    (tmp_path / "ropewalk-index-pipe").mkdir()
    before = sorted(tmp_path.iterdir())
    use_once(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_a_child_leaves_the_folder_of_its_parent_alone(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", REMOVE_IN_A_CHILD],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.stdout.split() == ["True", "False"]
    assert list(tmp_path.iterdir()) == []


def test_folders_of_another_account_are_left_alone(tmp_path):
    if os.getuid() != 0:
        skip_without_rights("only root can make files of another account")
    with owner(MAKE, tmp_path) as (process, (folder,)):
        process.kill()
        process.wait()
    os.chown(folder.with_name(folder.name + ".owner"), 12345, 12345)
    use_once(tmp_path)
    assert folder.is_dir()
