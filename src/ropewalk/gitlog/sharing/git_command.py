"""Run git as a subprocess for what only git does: talk to remotes and edit its configuration."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from ropewalk.errors import Unavailable

# Variables that name another repository or its parts: a fetch under one of them would store objects there.
LOCAL = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
)
# Fixed messages, because the reasons of a rejected push are parsed; no prompt without a terminal.
PLAIN = ("env", *(part for name in LOCAL for part in ("-u", name)), "LC_ALL=C")
BATCH = (*PLAIN, "GIT_TERMINAL_PROMPT=0")
DETAIL_CHARACTERS_MAX = 500


def run_git(
    git_dir: Path | None, *arguments: str, interactive: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """Run git and return its result; raise Unavailable if git is not installed.

    git starts where a user would call it, because relative addresses of remotes are resolved there. It finds the
    repository itself, so that it refuses one of another owner: its configuration can name programs to run.
    """
    where = ["-c", "core.fsync=all"]  # by itself git does not sync refs: a power cut may leave zeros in them
    if git_dir is not None:
        top = git_dir.parent if git_dir.name == ".git" else git_dir
        where += ["-C", str(top), "-c", "safe.bareRepository=all"]
    command = [*(PLAIN if interactive else BATCH), "git", *where, *arguments]
    try:
        return subprocess.run(command, input=b"", capture_output=True, check=False)
    except OSError as error:
        raise Unavailable(f"git: {error.strerror}", advice="Install git and put it on PATH.") from error


def ask_git(git_dir: Path | None, *arguments: str, interactive: bool = False) -> str:
    """Run git and return its output; raise Unavailable with git's own message if it fails."""
    done = run_git(git_dir, *arguments, interactive=interactive)
    if done.returncode:
        raise git_failure(arguments, done.stderr)
    return done.stdout.decode("utf-8", "surrogateescape")


def git_failure(arguments: Sequence[str], stderr: bytes) -> Unavailable:
    """Return the error for a git command that failed."""
    lines = [
        " ".join(line.split()) for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()
    ]
    detail = "; ".join(lines)[:DETAIL_CHARACTERS_MAX] or "no message"
    advice = (
        "Check the address of the remote and your access to it (`git remote -v`), then run the command again."
    )
    trust = next((line for line in lines if "safe.directory" in line), None)
    if trust is not None:
        advice = f"Only if you trust the owner of that folder: {trust}"
    return Unavailable(f"git {arguments[0]} failed: {detail}", advice=advice)
