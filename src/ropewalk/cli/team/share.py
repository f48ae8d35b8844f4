"""`ropewalk clone`, `pull` and `push`: share logs through a git remote."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import command, emit, say
from ropewalk.cli.common.locations import here, login
from ropewalk.cli.common.options import flag
from ropewalk.cli.git.events import opened
from ropewalk.cli.init import prepare
from ropewalk.disk.repository_paths import make_repository
from ropewalk.errors import Conflict, Unavailable
from ropewalk.gitlog.sharing.git_command import ask_git

if TYPE_CHECKING:
    from ropewalk.gitlog.repository.repository import GitRepository
    from ropewalk.gitlog.sharing.exchange import Exchange


@command(
    "clone", "ropewalk clone git@example.org:team/log.git log", "ropewalk clone --bare /srv/log.git copy.git"
)
@click.argument("url")
@click.argument("folder", metavar="[DIR]", required=False)
@flag("--bare", "Clone without a work tree.")
def clone(url: str, folder: str | None, bare: bool) -> None:
    """Clone the repository at URL with its logs into the new folder DIR (default: the last part of URL)."""
    from ropewalk.gitlog.repository.opening import open_repository
    from ropewalk.gitlog.sharing.exchange import pull as exchange

    options = ["--bare"] if bare else []
    if folder is None:
        name = re.split("[/:]", url.rstrip("/").removesuffix("/.git"))[-1].removesuffix(".git")
        folder = f"{name}.git" if bare else name
    if Path(folder).exists() and (not Path(folder).is_dir() or any(Path(folder).iterdir())):
        raise Conflict(f"{folder} is there already", path=folder, advice="Name a new or empty folder.")
    try:
        ask_git(None, "clone", "--quiet", *options, "--", url, folder, interactive=sys.stdin.isatty())
    except Unavailable as error:
        if "safe.directory" not in error.advice_now:
            error.advice_now = "Check the address and your access to it: git ls-remote URL"
        raise
    place, done = make_repository(Path(folder))
    done += prepare(place)
    with open_repository(place.git_dir) as log:
        pulled = exchange(log, "origin", who=_who(log), interactive=sys.stdin.isatty())
    answer = {"repository": str(place.git_dir), "done": done, **_pulled_json(pulled)}
    emit(answer, [f"ok  {place.git_dir}", *_counts(pulled.fetched, "cloned")])


@command("pull", "ropewalk pull", "ropewalk pull upstream")
@click.argument("remote", required=False)
def pull(remote: str | None) -> None:
    """Fetch the logs of REMOTE (default: origin), verify the new events, and fast-forward the logs here.

    Notes, anchors, signed heads and checkpoints of consumer groups are fetched, too. A log to which both sides appended
    is not changed: `ropewalk push` re-appends your events behind those of the remote.
    """
    from ropewalk.gitlog.sharing.exchange import pull as exchange
    from ropewalk.gitlog.sharing.remotes import choose_remote

    name = choose_remote(here().git_dir, remote)
    with opened() as log:
        done = exchange(log, name, who=_who(log), interactive=sys.stdin.isatty())
    for each in done.diverged:
        say(
            f"{each}: both sides appended; `ropewalk push {name}` re-appends your events behind those of {name}"
        )
    emit(_pulled_json(done), _counts(done.fetched, f"from {name}"), f"ok  nothing new on {name}")


@command("push", "ropewalk push", "ropewalk push upstream --no-rebase")
@click.argument("remote", required=False)
@flag("--no-rebase", "Exit with 4 instead of re-appending events where both sides appended.")
def push(remote: str | None, no_rebase: bool) -> None:
    """Send the logs here to REMOTE (default: origin), with notes, anchors, signed heads and checkpoints.

    Where both sides appended to one log, first re-append your events behind those of the remote, each once, with
    trailer, attachments and note. They get new ULIDs and name their old content ids in `refs.displaced`; the old
    commits stay under refs/ropewalk/displaced/.
    """
    from ropewalk.gitlog.sharing.exchange import push as exchange
    from ropewalk.gitlog.sharing.remotes import choose_remote

    name = choose_remote(here().git_dir, remote)
    with opened() as log:
        done = exchange(log, name, who=_who(log), rebase=not no_rebase, interactive=sys.stdin.isatty())
    for each, count in done.reappended.items():
        layout, _, topic = each.partition("/")
        kept = f"ropewalk heads diff --{'ns' if layout == 'shiplog' else 'topic'} {topic}"
        say(f"{each}: re-appended {_events(count)} behind those of {name}; `{kept}` names the old ones")
    for ref, count in done.dropped.items():
        say(f"{ref}: dropped {count} that spoke of displaced events; anchor or sign the log again")
    pushed = [{"log": each, "events": count} for each, count in done.pushed.items()]
    answer = {"pushed": pushed, "reappended": sum(done.reappended.values()), **_pulled_json(done)}
    emit(answer, _counts(done.pushed, f"to {name}"), f"ok  {name} has everything")


def _who(log: GitRepository) -> str:
    return f"{login()[0]} {log.store.identity}"


def _events(count: int) -> str:
    return f"{count} event{'' if count == 1 else 's'}"


def _counts(counts: dict[str, int], what: str) -> list[str]:
    return [f"ok  {name}  {_events(count)} {what}" for name, count in counts.items()]


def _pulled_json(done: Exchange) -> dict[str, Any]:
    pulled = [{"log": name, "events": count} for name, count in done.fetched.items()]
    return {"pulled": pulled, "diverged": done.diverged}
