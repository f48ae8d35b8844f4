"""Checkpoints, tiles, proofs and witnesses, checked by Go's golang.org/x/mod (sumdb/note and tlog) in a small tool."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.tools import needs, needs_that
from tests.unit.ledger.calling import make
from tests.unit.ledger.conftest import ropewalk  # noqa: F401 - a fixture
from tests.unit.ledger.heading import LOG, NOW_S, WITNESS, SmallLog
from tests.waiting import LIMIT_S

from ropewalk.kernel.note.note import cosign_head

SOURCE = Path(__file__).parent / "go" / "tlog.go"
GOPATH = "/usr/share/gocode"
HOST = ("--host", "log.example")

pytestmark = [
    pytest.mark.slow,
    needs("go"),
    needs_that(Path(GOPATH, "src/golang.org/x/mod/sumdb").is_dir(), "no golang-golang-x-mod-dev here"),
]


@pytest.fixture(scope="session")
def tool(tmp_path_factory):
    folder = tmp_path_factory.mktemp("go")
    env = {**os.environ, "GO111MODULE": "off", "GOPATH": GOPATH, "GOCACHE": str(folder / "cache")}
    env.pop("GOFLAGS", None)
    subprocess.run(["go", "build", "-o", str(folder / "tlog"), str(SOURCE)], env=env, check=True, timeout=300)
    return str(folder / "tlog")


def run(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 700])
def test_go_verifies_tiles_and_proofs(tool, tmp_path, size):
    folder = SmallLog(size).publish(tmp_path)
    (folder / "checkpoint").write_bytes(cosign_head((folder / "checkpoint").read_bytes(), WITNESS, NOW_S))
    keys = (LOG.verifier.to_text(), WITNESS.verifier.to_text())
    done = run(tool, "verify", str(folder), *keys)
    assert (done.returncode, done.stdout) == (0, f"ok log.example/ops {size}\n"), done
    tile = folder / ("tile/0/000" if size >= 256 else f"tile/0/000.p/{size}")
    raw = tile.read_bytes()
    tile.write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    assert run(tool, "verify", str(folder), *keys).returncode == 1


def test_go_is_a_witness_of_our_channel(tool, ropewalk):  # noqa: F811
    def append(number, *more):
        Path("body.json").write_text(f'{{"n":{number}}}')
        make(ropewalk)
        return ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json", *more, "--json")

    assert append(0).code == 0
    assert ropewalk("ledger", "tiles", "--channel", "audit", *HOST, "-o", "public", "--json").code == 0
    vkey = ropewalk("ledger", "tiles", "--channel", "audit", *HOST, "-o", "public", "--json").json["vkey"]
    process = subprocess.Popen([tool, "witness", "go.example", vkey], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        pair = process.stdout.readline().strip()
        setting = (
            "ledger",
            "witness",
            "set",
            "--channel",
            "audit",
            *HOST,
            "--witness",
            pair,
            "--threshold",
            "1",
        )
        assert ropewalk(*setting).code == 0
        for number in range(1, 6):
            done = append(number, "--witnessed")
            assert (done.code, len(done.json["cosignatures"])) == (0, 1), done
            assert append(number + 100).code == 0  # so that the next proof covers two blocks
        envelope_id = done.json["envelope_id"]
        Path("head.note").write_text(done.json["checkpoint"])
        checked = ("--vkey", vkey, "--witness", pair.partition("=")[2], "--threshold", "1")
        assert ropewalk("verify", "head.note", *checked).code == 0
        assert ropewalk("ledger", "receipt", envelope_id, "--form", "tlog", "-o", "entry.proof").code == 0
        found = run(tool, "proof", "entry.proof", vkey, pair.partition("=")[2])
        assert (found.returncode, found.stdout) == (0, "ok 9 of 10\n"), found
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)
