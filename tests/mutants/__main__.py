"""Run the mutants and exit 1 if any survives: `python -m tests.mutants [--area A] [--row PREFIX] [--only NAME]`.

First all tests that are named run without a patch: a mutant counts as killed only by a test that passes without it.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants import Mutant, load, status_rows
from tests.test_status import ROOT
from tests.tools import install_npm_packages

CLIENT = "clients/js"  # its tests run the built file, so a patch of its sources is built first
REPORT = ROOT / "build" / "mutants.json"
LIMIT_S = 600  # a mutant may make a test wait until its own timeout
BASELINE_LIMIT_S = 5400
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
        ours = [path for path in sys.path if path.endswith("site-packages")]
        (packages / "copy.pth").write_text("\n".join([f"{self.root / 'src'}", *ours, ""]))
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
            code, tail = self._pytest(["-x", *tests])
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

    def failing_tests(self, tests: list[str]) -> set[str]:
        """Run the tests without a patch and return those that do not pass."""
        report = self.root / "build" / "baseline.xml"
        code, tail = self._pytest([f"--junitxml={report}", *tests], BASELINE_LIMIT_S)
        if code not in (PASSED, FAILED) or not report.exists():
            raise SystemExit(f"the tests cannot run without a patch either:\n{tail}")
        passing, failing = set(), set()  # a test with parameters passes if one case does and none fails
        for case in ET.parse(report).iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name', '').partition('[')[0]}"
            kinds = {child.tag for child in case}
            if kinds & {"failure", "error"}:
                failing.add(name)
            elif "skipped" not in kinds:
                passing.add(name)
        shown = passing - failing
        return {
            test
            for test in tests
            if test.replace(".py::", ".").replace("::", ".").replace("/", ".") not in shown
        }

    def _pytest(self, arguments: list[str], limit_s: int = LIMIT_S) -> tuple[int, str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [
            str(self.python),
            "-m",
            "pytest",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            *arguments,
        ]
        try:
            done = subprocess.run(
                command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            return -1, f"no answer within {limit_s} s"
        return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-6:])

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        self._clock += 2  # compiled modules are told apart by size and whole seconds
        os.utime(path, (self._clock, self._clock))


def _failing_without_a_patch(scratches: Sequence[Scratch], tests: set[str]) -> set[str]:
    """Return the tests that do not pass in an unpatched copy; nothing is shown by them."""
    files = sorted({test.partition("::")[0] for test in tests})
    shares = [set(files[number :: len(scratches)]) for number in range(len(scratches))]
    with ThreadPoolExecutor(len(scratches)) as pool:
        found = pool.map(
            lambda scratch, share: scratch.failing_tests(
                sorted(test for test in tests if test.partition("::")[0] in share)
            ),
            scratches,
            shares,
        )
        failing = set().union(*found)
    print(f"{len(tests) - len(failing)} of {len(tests)} named tests pass without a patch", flush=True)
    for test in sorted(failing):
        print(f"    does not pass: {test}", flush=True)
    return failing


def _run(scratches: Sequence[Scratch], tests_of: dict[Mutant, list[str]], failing: set[str]) -> list[Outcome]:
    """Run each mutant's tests that pass without it, and print a line for each."""
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for each in tests_of:
        waiting.put(each)
    outcomes: list[Outcome] = []

    def work(scratch: Scratch) -> None:
        while True:
            try:
                mutant = waiting.get_nowait()
            except queue.Empty:
                return
            tests = [test for test in tests_of[mutant] if test not in failing]
            if tests:
                outcome = scratch.run(mutant, tests)
            else:
                outcome = Outcome(mutant.title, mutant.row, "error", 0, [], "no named test passes without it")
            outcomes.append(outcome)
            print(f"{outcome.outcome:9} {outcome.seconds:6.1f} s  {outcome.mutant}", flush=True)
            if outcome.outcome != "killed":
                print("    " + outcome.tail.replace("\n", "\n    "), flush=True)

    workers = [threading.Thread(target=work, args=(scratch,)) for scratch in scratches]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return outcomes


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
    tests_of = {each: list(each.tests) or rows[each.row].tests for each in mutants}
    with tempfile.TemporaryDirectory(prefix="ropewalk-mutants-") as folder:
        jobs = range(min(asked.jobs, len(mutants)))
        scratches = [Scratch(Path(folder) / str(number)) for number in jobs]
        failing = _failing_without_a_patch(scratches, {test for tests in tests_of.values() for test in tests})
        outcomes = _run(scratches, tests_of, failing)
    killed = sum(each.outcome == "killed" for each in outcomes)
    REPORT.parent.mkdir(exist_ok=True)
    report = {"mutants": len(outcomes), "killed": killed, "outcomes": [asdict(each) for each in outcomes]}
    REPORT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{killed} of {len(outcomes)} mutants killed; report: {REPORT.relative_to(ROOT)}")
    return 0 if killed == len(outcomes) == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
