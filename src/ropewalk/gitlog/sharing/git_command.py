"""Run git as a subprocess for what only git does: talk to remotes and edit its configuration."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from ropewalk.errors import Unavailable

# Fixed messages, because the reasons of a rejected push are parsed; no prompt without a terminal.
BATCH = ("env", "LC_ALL=C", "GIT_TERMINAL_PROMPT=0")
PLAIN = ("env", "LC_ALL=C")
DETAIL_CHARACTERS_MAX = 500


def run_git(
    git_dir: Path | None, *arguments: str, interactive: bool = False, stdin: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run git and return its result; raise Unavailable if git is not installed."""
    where = [] if git_dir is None else [f"--git-dir={git_dir}"]
    command = [*(PLAIN if interactive else BATCH), "git", *where, *arguments]
    try:
        return subprocess.run(
            command, input=b"" if stdin is None else stdin, capture_output=True, check=False
        )
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
    lines = [line for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    detail = "; ".join(lines)[:DETAIL_CHARACTERS_MAX] or "no message"
    return Unavailable(
        f"git {arguments[0]} failed: {detail}",
        advice="Check the address of the remote and your access to it (`git remote -v`), then run the command again.",
    )
