"""The PyPI package aics-witness, which is not ours: as the witness of a channel, and as a client of our witness."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.tools import skip_or_fail
from tests.unit.ledger.calling import make
from tests.unit.ledger.conftest import ropewalk  # noqa: F401 - a fixture
from tests.unit.ledger.heading import LOG, ORIGIN, SmallLog
from tests.unit.ledger.witnesses import live_witness, post
from tests.waiting import LIMIT_S, until

from ropewalk.kernel.note.note import open_head
from ropewalk.ledger.transparency.witness import WitnessRequest

FOLDER = Path(__file__).parent / "aics"
HOST = ("--host", "log.example")
SMALL, OTHER = SmallLog(9), SmallLog(9, turn=2)


def newer_python() -> str | None:
    """Return a Python of 3.12 or later, which the package needs."""
    named = map(shutil.which, ("python3.14", "python3.13", "python3.12"))
    beside = Path(sys.base_prefix).parent.glob("3.*/bin/python3")  # where pyenv keeps its versions
    for each in (sys.executable, *named, *sorted(beside)):
        code = "import sys; sys.exit(sys.version_info < (3, 12))"
        if each and subprocess.run([each, "-c", code], capture_output=True, check=False).returncode == 0:
            return str(each)
    return None


pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def tools(tmp_path_factory):
    python, folder = newer_python(), tmp_path_factory.mktemp("aics")
    if python is None:
        skip_or_fail("no Python 3.12 or later here")
    subprocess.run([python, "-m", "venv", str(folder)], check=True, timeout=LIMIT_S)
    words = ("-m", "pip", "install", "--quiet", "--require-hashes", "-r", FOLDER / "requirements.txt")
    done = subprocess.run([folder / "bin/python", *words], capture_output=True, text=True, timeout=300)
    if done.returncode:
        skip_or_fail(f"pip could not install aics-witness: {done.stderr[-2000:]}")
    return folder / "bin"


class ForeignWitness:
    """`aics-witness serve` for one log."""

    def __init__(self, tools: Path, folder: Path, origin: str, vkey: str) -> None:
        self._command = (tools / "aics-witness", "--config", folder / "witness.json")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._place = f"127.0.0.1:{probe.getsockname()[1]}"
        self.url = f"http://{self._place}"
        self.vkey = self.call("init", "--name", "aics.example", "--listen", self._place).strip()
        self.call("add-log", "--origin", origin, "--vkey", vkey)
        self.log = (folder / "serve.log").open("wb")
        self.process = subprocess.Popen(self._words("serve"), stdout=self.log, stderr=self.log)
        until(self._answers)

    def _words(self, command: str, *more: str) -> list[str]:
        return [str(self._command[0]), command, *map(str, self._command[1:]), *more]

    def call(self, command: str, *more: str) -> str:
        words = self._words(command, *more)
        return subprocess.run(words, check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout

    def _answers(self) -> bool:
        assert self.process.poll() is None
        try:
            return post(self.url, b"", "/healthz", "GET")[0] == 200
        except OSError:
            return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(LIMIT_S)
        self.log.close()


@pytest.fixture
def witness_of(tools, tmp_path):
    started = []

    def start(origin: str, vkey: str) -> ForeignWitness:
        folder = tmp_path / "aics"
        folder.mkdir()
        started.append(ForeignWitness(tools, folder, origin, vkey))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def test_aics_is_a_witness_of_our_channel(witness_of, ropewalk):  # noqa: F811
    def append(number, *more):
        Path("body.json").write_text(f'{{"n":{number}}}')
        make(ropewalk)
        return ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json", *more, "--json")

    assert append(0).code == 0
    tiles = ropewalk("ledger", "tiles", "--channel", "audit", *HOST, "-o", "public", "--json")
    witness = witness_of("log.example/audit", tiles.json["vkey"])
    words = ("ledger", "witness", "set", "--channel", "audit", *HOST, "--threshold", "1")
    assert ropewalk(*words, "--witness", f"{witness.url}={witness.vkey}").code == 0
    for number in range(1, 6):
        done = append(number, "--witnessed")
        assert (done.code, len(done.json["cosignatures"])) == (0, 1), done
        assert append(number + 100).code == 0  # so that the next proof covers two blocks
    Path("head.note").write_text(done.json["checkpoint"])
    checked = ("--vkey", tiles.json["vkey"], "--witness", witness.vkey, "--threshold", "1")
    assert ropewalk("verify", "head.note", *checked).code == 0
    assert [each["size"] for each in json.loads(witness.call("status", "--json"))["logs"]] == [10]


def test_aics_refuses_our_forks_as_we_do(witness_of, tmp_path):
    theirs = witness_of(ORIGIN, LOG.verifier.to_text())
    steps = ((0, 5, SMALL), (0, 5, SMALL), (5, 5, OTHER), (5, 9, OTHER), (7, 9, SMALL), (5, 9, SMALL))
    with live_witness(tmp_path / "ours", "w.example") as ours:
        ours.witness.add(LOG.verifier)
        answers = [
            [post(url, request(old, size, log))[:2] for old, size, log in steps]
            for url in (theirs.url, ours.url)
        ]
    assert [status for status, _ in answers[0]] == [200, 409, 422, 422, 409, 200]
    assert [status for status, _ in answers[1]] == [status for status, _ in answers[0]]
    assert answers[0][1][1] == answers[1][1][1] == "text/x.tlog.size"


def request(old: int, size: int, log: SmallLog) -> bytes:
    path = log.tree.consistency(old, size) if 0 < old < size else ()
    return WitnessRequest(log.head(size), old, path).to_bytes()


def test_aics_client_is_cosigned_by_our_witness(tools, tmp_path):
    steps = []
    for size in (3, 4, 9):
        proofs = {
            old: [each.hex() for each in SMALL.tree.consistency(old, size)] if old else []
            for old in range(size + 1)
        }
        steps.append([SMALL.head(size).decode(), proofs])
    with live_witness(tmp_path / "ours", "w.example") as ours:
        ours.witness.add(LOG.verifier)
        words = [str(tools / "python"), str(FOLDER / "feed.py"), ours.url, ours.vkey.to_text()]
        done = subprocess.run(words, input=json.dumps(steps).encode(), capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    head, note = open_head(done.stdout, LOG.verifier, [ours.vkey])
    signed = note.signed_by(ours.vkey)
    assert head.size == 9 and signed is not None and abs((signed.time_s or 0) - time.time()) < LIMIT_S
