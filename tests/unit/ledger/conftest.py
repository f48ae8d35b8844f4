"""A repository, a key and a folder of its own for every test that calls a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.ledger.calling import Answer, Ropewalk
from tests.unit.ledger.certifying import Authority

from ropewalk.cli.main import run


@pytest.fixture
def ropewalk(tmp_path, monkeypatch, capfd) -> Ropewalk:
    """Run a command line in this process, with a repository, a key `ada` and files of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROPEWALK_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("ROPEWALK_REPO", str(tmp_path / "repo.git"))
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: str) -> Answer:
        capfd.readouterr()
        code = run(arguments)
        out, err = capfd.readouterr()
        return Answer(code, out, err)

    assert call("init", "repo.git").code == 0
    assert call("key", "new", "ada").code == 0
    Path("body.json").write_text('{"n":1}')
    return call


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))
