"""A person at a terminal: a folder of their own, a configuration of their own, and the real command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests import forking
from tests.waiting import LIMIT_S


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Ropewalk = Callable[..., Answer]


def living_in(folder: Path) -> Ropewalk:
    """Run the command in a folder; `stdin` is bytes, `env` adds to a bare environment."""

    def run(
        *arguments: str, stdin: bytes = b"", cwd: Path = folder, env: dict[str, str] | None = None
    ) -> Answer:
        bare = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder / "home"),
            "ROPEWALK_CONFIG": str(folder / "config"),
            "LANG": "C.UTF-8",
        }
        if env is None or not any(name.startswith(("PYTHON", "LC_", "LANG")) for name in env):
            done = forking.run(arguments, stdin, cwd, bare | (env or {}))
            return Answer(done.code, done.out, done.err.decode())
        started = subprocess.run(
            [Path(sys.executable).with_name("ropewalk"), *arguments],
            input=stdin,
            capture_output=True,
            cwd=cwd,
            env=bare | env,
            timeout=LIMIT_S,
            check=False,
        )
        return Answer(started.returncode, started.stdout, started.stderr.decode())

    return run


def move_in(made: Path, folder: Path) -> None:
    """Put into a folder what was made once in another: commands take most of the time of these tests."""
    shutil.copytree(made, folder, symlinks=True, dirs_exist_ok=True)


@pytest.fixture
def ropewalk(tmp_path: Path) -> Ropewalk:
    """The command in a fresh folder."""
    return living_in(tmp_path)


@pytest.fixture(scope="session")
def new_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new repository, made once."""
    folder = tmp_path_factory.mktemp("new_log")
    assert living_in(folder)("init", "log.git").code == 0
    return folder


@pytest.fixture
def log(ropewalk: Ropewalk, new_log: Path, tmp_path: Path) -> Ropewalk:
    """The command in a repository of its own, which need not be named."""
    move_in(new_log, tmp_path)

    def run(*arguments: str, env_more: dict[str, str] | None = None, **more: Any) -> Answer:
        env = {"ROPEWALK_REPO": str(tmp_path / "log.git"), **(env_more or {})}
        return ropewalk(*arguments, env=env, **more)

    return run
