"""git's configuration, read by libgit2, which is loaded only when something is asked: most reading asks nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.errors import Invalid, Unavailable

if TYPE_CHECKING:
    import pygit2

__all__ = ["GitSettings"]


class GitSettings:
    """What is set for one repository, and by whoever runs us."""

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
        """A setting of the repository, else of the person, else of the machine; empty if nobody set it."""
        for config in (self._repository, *_user_configs()):
            with contextlib.suppress(KeyError):
                return str(config[key])
        return ""

    def _has_extensions(self) -> bool:
        """Whether there may be any: a file that speaks neither of them nor of other files has none."""
        try:
            text = self._path.read_bytes().lower()
        except OSError:
            return True  # libgit2 says what is wrong with it
        return b"extensions" in text or b"include" in text

    def _own(self, key: str) -> str:
        with contextlib.suppress(KeyError):
            return str(self._repository[key]).lower()
        return ""

    @cached_property
    def _repository(self) -> pygit2.Config:
        import pygit2

        try:
            return pygit2.Config(str(self._path))
        except (pygit2.GitError, OSError) as error:
            raise Unavailable(
                f"git's configuration {self._path} cannot be read: {error}", path=str(self._path)
            ) from error


def _user_configs() -> Iterator[pygit2.Config]:
    import pygit2

    for finder in (
        pygit2.Config.get_global_config,
        pygit2.Config.get_xdg_config,
        pygit2.Config.get_system_config,
    ):
        with contextlib.suppress(pygit2.GitError, OSError):
            yield finder()
