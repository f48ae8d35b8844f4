"""A repository, a key and a folder of its own for every test that calls a command."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.unit.ledger.calling import Answer, Ropewalk
from tests.unit.ledger.certifying import Authority

from ropewalk.cli.main import run
from ropewalk.disk.certificate_authority import CertificateAuthority, init_authority


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


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    made = init_authority(tmp_path_factory.mktemp("pki"), "ropewalk", datetime.now(UTC))
    made.issue("server", ["127.0.0.1", "localhost"])
    made.issue("ada", [])
    return made
