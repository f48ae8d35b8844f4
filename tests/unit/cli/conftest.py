"""A person at a terminal: a folder of their own, a configuration of their own, and the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


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


@pytest.fixture
def ropewalk(tmp_path: Path) -> Ropewalk:
    """Run the installed command in a fresh folder; `stdin` is bytes, `env` adds to a bare environment."""
    command = Path(sys.executable).with_name("ropewalk")

    def run(
        *arguments: str, stdin: bytes = b"", cwd: Path = tmp_path, env: dict[str, str] | None = None
    ) -> Answer:
        bare = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / "home"),
            "ROPEWALK_CONFIG": str(tmp_path / "config"),
            "LANG": "C.UTF-8",
        }
        done = subprocess.run(
            [command, *arguments],
            input=stdin,
            capture_output=True,
            cwd=cwd,
            env=bare | (env or {}),
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr.decode())

    return run


@pytest.fixture
def log(ropewalk: Ropewalk, tmp_path: Path) -> Ropewalk:
    """The command in a repository of its own, which need not be named."""
    assert ropewalk("init", "log.git").code == 0

    def run(*arguments: str, **more: Any) -> Answer:
        return ropewalk(*arguments, env={"ROPEWALK_REPO": str(tmp_path / "log.git")}, **more)

    return run
