"""git's configuration, asked of git itself; where there is no git, read by libgit2.

Loading libgit2 takes a third of a short command's time, starting git a tenth of that. Most reading asks for nothing.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ropewalk.disk.durable import read_file
from ropewalk.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from pygit2 import Config

ASK_S = 10.0  # a git that takes longer to say what it knows is asked no more
OWN = frozenset({"local", "worktree"})
SPAN = re.compile(r"(\d{1,9})([smhd]?)")
UNITS_MS = {"": 1_000, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class ConfigValue(NamedTuple):
    """One line of git's configuration: its scope, name and value."""

    scope: str
    key: str
    value: str


class GitSettings:
    """The git settings of one repository and of the user."""

    def __init__(self, git_dir: Path) -> None:
        self._git_dir = git_dir
        self._path = git_dir / "config"

    def refuse_foreign_formats(self) -> None:
        """Raise where objects or refs are kept in a way we do not know."""
        if self._has_extensions():
            self._refuse_extensions()
        if (self._git_dir / "reftable").is_dir():
            raise self._reftable()

    def _refuse_extensions(self) -> None:
        kind = self._own("extensions.objectformat")
        if kind not in ("", "sha1"):
            raise Invalid(
                f"{self._git_dir} keeps {kind.upper()} objects; "
                "the specifications name commits by 40 hex digits, which only SHA-1 repositories have",
                path=str(self._git_dir),
                advice="Use a repository made with `ropewalk init` or `git init --object-format=sha1`.",
            )
        if self._own("extensions.refstorage") not in ("", "files"):
            raise self._reftable()

    def _reftable(self) -> Invalid:
        return Invalid(
            f"{self._git_dir} keeps its refs as a reftable; ropewalk moves refs by git's lock files",
            path=str(self._git_dir),
            advice="Convert it with `git refs migrate --ref-format=files`.",
        )

    @cached_property
    def log_updates(self) -> str:
        """`core.logAllRefUpdates`: unset means yes where there is a work tree."""
        said = self._own("core.logallrefupdates")
        if said in ("always", "true", "false"):
            return said
        return "false" if self._own("core.bare") == "true" else "true"

    def user(self, key: str) -> str:
        """Return a setting of the repository, else of the person, else of the machine; empty if it is not set."""
        return next((each.value for each in reversed(self._listed) if each.key == key), "")

    def span_ms(self, key: str, default: int) -> int:
        """Return a span that is set in seconds or with a unit (90, 90s, 10m, 2h, 30d)."""
        text = self.user(key).strip().lower()
        if not text:
            return default
        match = SPAN.fullmatch(text)
        if match is None:
            raise Invalid(
                f"git's setting {key} must be a span of time such as 90s, 10m, 2h or 30d, got {text[:40]!r}",
                key=key,
                advice=f"Correct it with `git config {key} 10m`, or remove it.",
            )
        return int(match[1]) * UNITS_MS[match[2]]

    def _has_extensions(self) -> bool:
        """Return whether there may be any: a file that speaks neither of them nor of other files has none."""
        try:
            text = read_file(self._path).lower()
        except OSError:
            return True  # its reader reports what is wrong with it
        return b"extensions" in text or b"include" in text

    def _own(self, key: str) -> str:
        said = (each.value for each in reversed(self._listed) if each.key == key and each.scope in OWN)
        return next(said, "").lower()

    @cached_property
    def _listed(self) -> list[ConfigValue]:
        """All that is set, what counts most last."""
        listed = _ask_git(self._git_dir)
        return listed if listed is not None else list(_read_files(self._path))


def _ask_git(git_dir: Path) -> list[ConfigValue] | None:
    """Return git's output; None without git, or where it refuses this repository."""
    import subprocess

    command = ["git", f"--git-dir={git_dir}", "config", "--list", "-z", "--show-scope"]
    try:
        said = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=ASK_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    words = _text(said).split("\0")
    listed = [_setting(scope, line) for scope, line in zip(words[::2], words[1::2], strict=False)]
    # Of a repository in a form it does not know it passes over everything.
    return listed if any(each.scope in OWN for each in listed) else None


def _setting(scope: str, line: str) -> ConfigValue:
    key, given, value = line.partition("\n")
    return ConfigValue(scope, key, value if given else "true")  # a name alone means true


def _read_files(path: Path) -> Iterator[ConfigValue]:
    """Yield what libgit2 reads in the files of the machine, of the person and of the repository."""
    import pygit2

    finders = (
        ("system", pygit2.Config.get_system_config),
        ("global", pygit2.Config.get_xdg_config),
        ("global", pygit2.Config.get_global_config),
    )
    for scope, finder in finders:
        with contextlib.suppress(pygit2.GitError, OSError):
            yield from _settings(scope, finder())
    try:
        yield from _settings("local", pygit2.Config(str(path)))
    except (pygit2.GitError, OSError) as error:
        raise Unavailable(f"git's configuration {path} cannot be read: {error}", path=str(path)) from error


def _settings(scope: str, config: Config) -> Iterator[ConfigValue]:
    for each in config:
        value = b"true" if each.raw_value is None else each.raw_value
        yield ConfigValue(scope, _text(each.raw_name), _text(value))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
