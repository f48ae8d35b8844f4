"""`ropewalk hook`: install and run the server-side hook that checks pushes to a shared repository."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from ropewalk.cli.common.command import emit, group, say
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.options import repeated
from ropewalk.disk.repository_paths import absolute
from ropewalk.errors import Conflict, Denied
from ropewalk.gitlog.sharing.git_command import ask_git, git_failure, run_git
from ropewalk.kernel.terminal_text import printable

MARK = "# installed by `ropewalk hook install`"
SIGNED = "ropewalk.signedLogs"  # git configuration: patterns of logs whose commits must be signed


@group("hook", "ropewalk hook install --repo /srv/log.git")
def hook() -> None:
    """Install and run the server-side hook that checks pushes."""


@hook.command(
    "install",
    "ropewalk hook install --repo /srv/log.git",
    "ropewalk hook install --repo /srv/log.git --require-signed 'shiplog/prod'",
)
@repeated(
    "--require-signed signed",
    "LOG",
    "Also refuse commits without a valid signature in this log, such as shiplog/prod or messages/*; repeatable.",
)
def install(signed: tuple[str, ...]) -> None:
    """Install the pre-receive hook in the repository that others push to.

    The hook refuses pushes that rewrite or delete a log, or break the rules of envelopes. Signatures are checked with
    `git verify-commit`: set gpg.ssh.allowedSignersFile in the repository.
    """
    place = here()
    path = place.git_dir / "hooks" / "pre-receive"
    other = run_git(place.git_dir, "config", "--get", "core.hooksPath").stdout.decode().strip()
    if other:
        raise Conflict(
            f"git runs the hooks in {other} (core.hooksPath), not those of this repository",
            path=other,
            advice="Call `ropewalk hook run` in its pre-receive, with the same stdin, or unset core.hooksPath.",
        )
    if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
        raise Conflict(
            f"{path} exists and was not installed by ropewalk",
            path=str(path),
            advice="Call `ropewalk hook run` in it, with the same standard input.",
        )
    path.parent.mkdir(exist_ok=True)
    code = "from ropewalk.cli import main; main()"
    path.write_text(
        f"#!/bin/sh\n{MARK}\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)} hook run\n"
    )
    path.chmod(0o755)
    for pattern in signed:
        ask_git(place.git_dir, "config", "--add", SIGNED, pattern)
    emit({"path": str(path), "signed": list(signed)}, f"ok  {path}")


@hook.command("run", "ropewalk hook run < updates  # in hooks/pre-receive")
def run() -> None:
    """Check the refs of a push, one `<old> <new> <ref>` per line of stdin, as in pre-receive. Exit 6 if refused."""
    from ropewalk.gitlog.sharing.receive import check_push, parse_updates

    asked = run_git(absolute(Path(os.environ.get("GIT_DIR", "."))), "config", "--get-all", SIGNED)
    if asked.returncode not in (0, 1):  # 1: not set
        raise git_failure(["config"], asked.stderr)
    reasons = check_push(parse_updates(sys.stdin), asked.stdout.decode().split())
    for reason in reasons:
        say(f"ropewalk: {printable(reason)}")
    if reasons:
        raise click.exceptions.Exit(Denied.exit_code)
