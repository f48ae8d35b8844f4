"""Remotes of a repository and the refs that mirror their logs: `refs/ropewalk/remotes/<remote>/…`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ropewalk.disk.durable import Disk, file_errors
from ropewalk.errors import NotFound, Unavailable, Usage
from ropewalk.gitlog.core.layout import Layout
from ropewalk.gitlog.core.log import Repo
from ropewalk.gitlog.sharing.git_command import ask_git, run_git

SHARED = ("refs/gatos/", "refs/notes/gatos/")  # logs with anchors, signed heads and cursors; notes


def tracking_prefix(remote: str) -> str:
    """Return the prefix of the refs that mirror a remote.

    >>> tracking_prefix("origin")
    'refs/ropewalk/remotes/origin/'
    """
    return f"refs/ropewalk/remotes/{remote}/"


def tracking_ref(remote: str, ref: str) -> str:
    """Return the ref that mirrors `ref` of a remote.

    >>> tracking_ref("origin", "refs/gatos/shiplog/prod/head")
    'refs/ropewalk/remotes/origin/gatos/shiplog/prod/head'
    """
    return tracking_prefix(remote) + ref.removeprefix("refs/")


def refspecs(remote: str) -> list[str]:
    """Return the refspecs that fetch the logs of a remote."""
    return [f"+{prefix}*:{tracking_ref(remote, prefix)}*" for prefix in SHARED]


def remotes(git_dir: Path) -> list[str]:
    """Return the names of the remotes."""
    return ask_git(git_dir, "remote").split()


def choose_remote(git_dir: Path, name: str | None) -> str:
    """Return the remote that was named, else `origin`, else the only one."""
    known = remotes(git_dir)
    if name is not None and name not in known:
        advice = (
            f"The remotes are: {', '.join(known)}." if known else "Add one with `git remote add origin URL`."
        )
        raise NotFound(f"there is no remote {name!r}", name=name, remote=name, advice=advice)
    if name is not None or "origin" in known:
        return name or "origin"
    if len(known) == 1:
        return known[0]
    if known:
        raise Usage(f"a remote must be named: {', '.join(known)}", advice="Name one: `ropewalk push REMOTE`.")
    raise NotFound("this repository has no remote", advice="Add one with `git remote add origin URL`.")


def is_mirror(git_dir: Path, remote: str) -> bool:
    """Return whether every fetch from a remote overwrites the refs here (`git clone --mirror`)."""
    return run_git(git_dir, "config", "--get", f"remote.{remote}.mirror").stdout.strip() == b"true"


def missing_refspecs(git_dir: Path, remote: str) -> list[str]:
    """Return the refspecs of the logs of a remote that `git fetch` does not use yet."""
    known = run_git(git_dir, "config", "--get-all", f"remote.{remote}.fetch").stdout.decode().split("\n")
    return [spec for spec in refspecs(remote) if spec not in known]


def configure(git_dir: Path, remote: str) -> bool:
    """Add the refspecs of the logs to a remote; return whether any was missing."""
    missing = missing_refspecs(git_dir, remote)
    if not missing:
        return False
    config = Path(ask_git(git_dir, "rev-parse", "--path-format=absolute", "--git-path", "config").strip())
    with file_errors("git's configuration"), tempfile.TemporaryDirectory() as folder:
        # git does not sync its configuration: after a power cut it would be empty.
        before, copy = config.read_bytes(), Path(folder) / "config"
        copy.write_bytes(before)
        for spec in missing:
            ask_git(git_dir, "config", "--file", str(copy), "--add", f"remote.{remote}.fetch", spec)
        if config.with_name("config.lock").exists() or config.read_bytes() != before:
            raise Unavailable(
                f"{config} is being changed by another process",
                advice=f"Run the command again. If no git process runs, remove {config}.lock.",
            )
        Disk().replace(config, copy.read_bytes(), mode=config.stat().st_mode & 0o777)
    return True


def fetch(git_dir: Path, remote: str, *, interactive: bool = False) -> None:
    """Bring the tracking refs of a remote up to date, with all their objects also in a partial clone."""
    ends = ["--quiet", "--no-tags", "--no-filter", "--prune", "--refmap=", "--", remote, *refspecs(remote)]
    ask_git(git_dir, "fetch", *ends, interactive=interactive)
    if run_git(git_dir, "config", "--get", f"remote.{remote}.promisor").stdout.strip() == b"true":
        listed = ask_git(
            git_dir, "rev-list", "--objects", "--missing=print", f"--glob={tracking_prefix(remote)}*"
        )
        if any(line.startswith("?") for line in listed.splitlines()):  # a plain `git fetch` left them out
            ask_git(git_dir, "fetch", "--refetch", *ends, interactive=interactive)


def advise_missing(git_dir: Path, repo: Repo, layout: Layout, topic: str | None = None) -> str | None:
    """Return advice if a remote has a log that is missing here, or may have it; None without remotes."""
    known = remotes(git_dir)
    for remote in known:
        if topic is not None and repo.head(tracking_ref(remote, layout.head_ref(topic))) is not None:
            return f"The remote {remote} has this log: `ropewalk pull {remote}` brings it here."
    fresh = [remote for remote in known if missing_refspecs(git_dir, remote)]
    if fresh:
        return f"The logs of the remote {fresh[0]} were never fetched: `ropewalk pull {fresh[0]}` brings them here."
    return None
