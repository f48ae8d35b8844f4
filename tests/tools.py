"""Programs that some tests need: a missing one skips its tests on a laptop and fails them in CI.

`.ci/run` installs all of them and sets ROPEWALK_REQUIRE_TOOLS=1, so that no test is skipped there unseen.
`python -m tests.tools` installs the npm peers ahead of the tests, which give a slow machine less time to compile them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["install_npm_packages", "needs", "needs_that", "skip_or_fail", "skip_without_rights"]

REQUIRED = bool(os.environ.get("ROPEWALK_REQUIRE_TOOLS"))
INSTALL_S = 420.0  # npm downloads packages and compiles SQLite; below the limit of the tests that wait for it
ROOT = Path(__file__).resolve().parents[1]
PEERS = {
    ROOT / "tests/interop/node": "@canvas-js/gossiplog",
    ROOT / "tests/interop/grpc_node": "@grpc/grpc-js",
    ROOT / "tests/interop/snark": "snarkjs",
    ROOT / "bench/node": "@ipld/dag-cbor",
}


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip the test where a program is missing; where tools are required, the test runs and fails."""
    missing = [name for name in programs if shutil.which(name) is None]
    return needs_that(not missing, f"not on PATH: {', '.join(missing)}")


def needs_that(found: object, missing: str) -> pytest.MarkDecorator:
    """Skip the test unless something was found; where tools are required, the test runs and fails."""
    return pytest.mark.skipif(not found and not REQUIRED, reason=f"{missing}; CI has it")


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the running test, or fail it where tools are required."""
    if REQUIRED:
        pytest.fail(reason)
    pytest.skip(f"{reason}; CI runs this test")


def skip_without_rights(reason: str) -> NoReturn:
    """Skip the running test because of the account or the kernel, which no package changes; `.ci/run` lists these."""
    pytest.skip(f"{reason}; CI runs this test, as root of its own container")


def install_npm_packages(folder: Path, package: str) -> Path:
    """Install the packages of `folder` from its lock file, once for all workers; return the folder."""
    installed = folder / "node_modules" / package
    shared = Path(tempfile.gettempdir())
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    failed = shared / f"ropewalk-npm-{run}-{folder.parent.name}.failed"  # the other worker need not try again
    with (shared / f"ropewalk-npm-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.is_dir() and not failed.exists() and (reason := _npm_ci(folder)) is not None:
            failed.write_text(reason)
    if not installed.is_dir():
        skip_or_fail(f"npm ci failed in {folder}: {failed.read_text()}")
    return folder


def _npm_ci(folder: Path, limit_s: float = INSTALL_S) -> str | None:
    """Return why the packages could not be installed."""
    environment = dict(os.environ)
    # Compiled packages need Node's headers: take those installed with Node, if any, instead of a download.
    prefix = Path(shutil.which("node") or "/usr/bin/node").resolve().parents[1]
    if (prefix / "include" / "node" / "node_version.h").exists():
        environment.setdefault("npm_config_nodedir", str(prefix))
    command = ["npm", "ci", "--no-audit", "--no-fund"]
    try:
        with subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                _, said = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # compilers too: they would disturb the next build
                process.communicate()
                said = f"not done after {limit_s:g} s"
        reason = None if process.returncode == 0 else said.strip()[-2000:]
    except OSError as error:
        reason = str(error)
    if reason is not None:  # what is half installed must not look installed
        shutil.rmtree(folder / "node_modules", ignore_errors=True)
    return reason


def main() -> int:
    """Install the npm packages that are missing; return 1 and print the reason where that fails."""
    missing = [
        folder for folder, package in PEERS.items() if not (folder / "node_modules" / package).is_dir()
    ]
    reasons = [reason for folder in missing if (reason := _npm_ci(folder, limit_s=1800.0)) is not None]
    print("\n".join(reasons))
    return 1 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
