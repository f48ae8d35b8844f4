"""Run the mutants and exit 1 if any survives: `python -m tests.mutants [--area A] [--row PREFIX] [--only NAME]`."""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants import Mutant, load, status_rows
from tests.test_status import ROOT
from tests.tools import install_npm_packages

CLIENT = "clients/js"  # its tests run the built file, so a patch of its sources is built first
REPORT = ROOT / "build" / "mutants.json"
LIMIT_S = 600  # a mutant may make a test wait until its own timeout
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "node_modules", "__pycache__", ".*_cache")
PASSED, FAILED = 0, 1  # exit codes of pytest


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the tests of a row ended under a mutant."""

    mutant: str
    row: str
    outcome: str  # killed, survived or error
    seconds: float
    tests: list[str]
    tail: str


class Scratch:
    """A copy of the repository with an interpreter that imports it; one mutant at a time is applied to it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "ropewalk"
        shutil.copytree(ROOT, self.root, ignore=LEFT_OUT, symlinks=True)
        self.python = self._environment()
        self._clock = 0

    def _environment(self) -> Path:
        """Make a virtual environment that imports the copy first, then the packages of ours."""
        venv = self.root / ".venv"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = venv / "lib" / version / "site-packages"
        packages.mkdir(parents=True)
        (venv / "bin").mkdir()
        base = Path(sys.base_prefix) / "bin" / version
        (venv / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
        python = venv / "bin" / "python"
        python.symlink_to(base)
        (packages / "copy.pth").write_text(f"{self.root / 'src'}\n{sysconfig.get_path('purelib')}\n")
        for command in ("ropewalk", "gatosd"):
            script = venv / "bin" / command
            script.write_text(f"#!{python}\nimport sys\nfrom ropewalk.cli import main\nsys.exit(main())\n")
            script.chmod(0o755)
        return python

    def run(self, mutant: Mutant, tests: list[str]) -> Outcome:
        """Apply a mutant, run the tests, take it back."""
        path = self.root / mutant.file
        original = path.read_text(encoding="utf-8")
        started = time.monotonic()
        built = self.root / CLIENT / "dist" / "ropewalk.js"
        kept = built.read_bytes()
        self._write(path, mutant.apply(original))
        try:
            if mutant.file.startswith(CLIENT):
                self._build()
            code, tail = self._pytest(tests)
        except subprocess.CalledProcessError as error:
            code, tail = -1, error.stderr
        finally:
            self._write(path, original)
            built.write_bytes(kept)
        outcome = {PASSED: "survived", FAILED: "killed"}.get(code, "error")
        return Outcome(mutant.title, mutant.row, outcome, round(time.monotonic() - started, 1), tests, tail)

    def _build(self) -> None:
        folder = self.root / CLIENT
        if not (folder / "node_modules").exists():
            packages = install_npm_packages(ROOT / CLIENT, "esbuild") / "node_modules"
            (folder / "node_modules").symlink_to(packages)
        words = ["npm", "run", "--silent", "build"]
        subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True, timeout=LIMIT_S)

    def _pytest(self, tests: list[str]) -> tuple[int, str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [
            str(self.python),
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            *tests,
        ]
        try:
            done = subprocess.run(
                command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return -1, f"no answer within {LIMIT_S} s"
        return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-6:])

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        self._clock += 2  # compiled modules are told apart by size and whole seconds
        os.utime(path, (self._clock, self._clock))


def main() -> int:
    """Run what was asked for; print a line for each mutant, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--area", "--file", help="only the mutants of tests/mutants/AREA.toml")
    parser.add_argument("--row", default="", help="only rows that start with this")
    parser.add_argument("--only", help="only the mutant with this name")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once (default: 2)")
    asked = parser.parse_args()
    rows = status_rows()
    mutants = [
        each
        for each in load()
        if asked.area in (None, each.area)
        and asked.only in (None, each.name)
        and each.row.startswith(asked.row)
    ]
    if not mutants:
        parser.error("no mutant matches")
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for each in mutants:
        waiting.put(each)
    outcomes: list[Outcome] = []

    def work(scratch: Scratch) -> None:
        while True:
            try:
                mutant = waiting.get_nowait()
            except queue.Empty:
                return
            outcome = scratch.run(mutant, list(mutant.tests) or rows[mutant.row].tests)
            outcomes.append(outcome)
            print(f"{outcome.outcome:9} {outcome.seconds:6.1f} s  {outcome.mutant}", flush=True)
            if outcome.outcome != "killed":
                print("    " + outcome.tail.replace("\n", "\n    "), flush=True)

    with tempfile.TemporaryDirectory(prefix="ropewalk-mutants-") as folder:
        workers = [
            threading.Thread(target=work, args=(Scratch(Path(folder) / str(number)),))
            for number in range(min(asked.jobs, len(mutants)))
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    killed = sum(each.outcome == "killed" for each in outcomes)
    REPORT.parent.mkdir(exist_ok=True)
    report = {"mutants": len(outcomes), "killed": killed, "outcomes": [asdict(each) for each in outcomes]}
    REPORT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{killed} of {len(outcomes)} mutants killed; report: {REPORT.relative_to(ROOT)}")
    return 0 if killed == len(outcomes) == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
