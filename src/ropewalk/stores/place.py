"""Where things live: one git repository, and `<gitdir>/ropewalk/` inside it for everything that is not a ref.

Found by looking at files only, so that a command which needs no git object loads no git library.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ropewalk.errors import NotFound, Unavailable

__all__ = ["Place", "find_place", "make_place"]

FOLDER_MODE = 0o700


@dataclass(frozen=True, slots=True)
class Place:
    """One repository, by the folder that holds its refs and objects."""

    git_dir: Path

    @property
    def home(self) -> Path:
        """Everything of ropewalk that is not a git object or ref."""
        return self.git_dir / "ropewalk"

    @property
    def keys(self) -> Path:
        """The repository's own keys; `node` signs blocks and bundles unless told otherwise."""
        return self.home / "keys"


def find_place(start: Path) -> Place:
    """The repository at `start`, or the nearest one around it."""
    start = start.absolute()
    for folder in (start, *start.parents):
        git_dir = _git_dir_at(folder)
        if git_dir is not None:
            return Place(git_dir)
    raise NotFound(
        f"no git repository at {start} or around it",
        path=str(start),
        advice="Make one with `ropewalk init PATH`, or name one with --repo PATH.",
    )


def make_place(path: Path) -> tuple[Place, list[str]]:
    """Make a bare repository at `path`, or add to the one that is there; also say what was done."""
    done: list[str] = []
    git_dir = _git_dir_at(path.absolute())
    if git_dir is None:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise Unavailable(
                f"{path} is there and is no git repository",
                path=str(path),
                advice="Choose an empty or new folder, or run `git init` there first.",
            )
        import pygit2

        git_dir = Path(pygit2.init_repository(str(path), bare=True).path).absolute()
        done.append("made a bare git repository")
    place = Place(git_dir)
    for folder in (place.home, place.keys):
        if not folder.is_dir():
            folder.mkdir(mode=FOLDER_MODE, parents=True)
            done.append(f"made {folder.relative_to(git_dir)}/")
    return place, done


def _git_dir_at(folder: Path) -> Path | None:
    """The git directory if `folder` is a work tree or a bare repository."""
    dot_git = folder / ".git"
    if dot_git.is_file():
        text = dot_git.read_text(encoding="utf-8", errors="replace")
        if text.startswith("gitdir:"):
            return _common_dir((folder / text.removeprefix("gitdir:").strip()).resolve())
    for candidate in (dot_git, folder):
        if (
            (candidate / "HEAD").is_file()
            and (candidate / "objects").is_dir()
            and (candidate / "refs").is_dir()
        ):
            return candidate
    return None


def _common_dir(git_dir: Path) -> Path:
    """A linked work tree keeps refs and objects in the main repository: that is the place."""
    pointer = git_dir / "commondir"
    if not pointer.is_file():
        return git_dir
    return Path(os.path.normpath(git_dir / pointer.read_text(encoding="utf-8").strip()))
