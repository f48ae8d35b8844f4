"""git's configuration: what git says of it, and the same where there is no git."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ropewalk.gitlog.repository.opening import init_repository, open_repository
from ropewalk.gitlog.store.git_config import GitSettings

WRITING = """
import sys
from ropewalk.gitlog.repository.opening import open_repository
with open_repository(sys.argv[1]) as log:
    log.append("prod", {"type": "t", "payload": {}})
print("pygit2" in sys.modules)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A repository, with settings of its own and of a person."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    (home / ".gitconfig").write_text(
        "[user]\n\tname = Ada\n\temail = ada@example.test\n[core]\n\tbare = false\n"
    )
    init_repository(tmp_path / "log.git").close()
    with (tmp_path / "log.git" / "config").open("a") as config:
        config.write("[user]\n\tname = Grace\n[core]\n\tlogAllRefUpdates\n[include]\n\tpath = more\n")
    (tmp_path / "log.git" / "more").write_text("[demo]\n\tsaid = more\n")
    return tmp_path / "log.git"


ASKING = """
import json, sys
from pathlib import Path
from ropewalk.gitlog.store.git_config import GitSettings
settings = GitSettings(Path(sys.argv[1]))
names = ("user.name", "user.email", "demo.said", "user.signingkey")
own = {name: settings._own(name) for name in ("core.bare", "user.email")}
said = {name: settings.user(name) for name in names}
print(json.dumps([said, own, settings.log_updates, "pygit2" in sys.modules]))
"""


@pytest.mark.parametrize("has_git", [True, False], ids=["with git", "without git"])
def test_settings_are_the_repository_s_else_the_person_s(place, has_git):
    environment = {**os.environ, **({} if has_git else {"PATH": "/nonexistent"})}
    command = [sys.executable, "-c", ASKING, str(place)]
    said, own, log_updates, by_libgit2 = json.loads(subprocess.check_output(command, env=environment))
    assert said == {
        "user.name": "Grace",
        "user.email": "ada@example.test",
        "demo.said": "more",
        "user.signingkey": "",
    }
    assert own == {"core.bare": "true", "user.email": ""}
    assert log_updates == "true"
    assert by_libgit2 is not has_git


def test_a_repository_named_by_the_environment_is_not_asked_instead(place, tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", "--bare", tmp_path / "other.git"], check=True)
    subprocess.run(["git", "-C", tmp_path / "other.git", "config", "user.name", "Mallory"], check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other.git"))
    assert GitSettings(place).user("user.name") == "Grace"


def test_appending_does_not_load_libgit2_where_there_is_git(place):
    done = subprocess.run(
        [sys.executable, "-c", WRITING, str(place)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize("has_git", [True, False], ids=["with git", "without git"])
def test_author_that_is_not_utf8_is_kept(place, has_git, monkeypatch):
    """A bit of the configuration flips (seed 6 of the roll-up): libgit2's reader ended with a UnicodeDecodeError."""
    raw = (place / "config").read_bytes()
    (place / "config").write_bytes(raw.replace(b"Grace", b"Gr\xe1ce"))
    if not has_git:
        monkeypatch.setenv("PATH", "/nonexistent")
    assert GitSettings(place).user("user.name") == "Gr\udce1ce"
    with open_repository(place) as log:
        receipt = log.append("demo", {"type": "t", "payload": {}})
        assert [event.commit for event in log.events("demo")] == [receipt.commit]
