"""Where things live: one git repository, and `<gitdir>/ropewalk/` inside it for everything that is not a ref.

Found by looking at files only, so that a command which needs no git object loads no git library.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ropewalk.disk.durable import Disk, file_errors, sync
from ropewalk.errors import NotFound, Unavailable

FOLDER_MODE = 0o700


@dataclass(frozen=True, slots=True)
class RepositoryPaths:
    """One repository, by the folder that holds its refs and objects."""

    git_dir: Path

    @property
    def home(self) -> Path:
        """Everything of ropewalk that is not a git object or ref."""
        return self.git_dir / "ropewalk"

    @property
    def keys(self) -> Path:
        """Return the folder of the repository's keys; `node` signs blocks and bundles by default."""
        return self.home / "keys"


def absolute(path: Path) -> Path:
    """Return the path from the root. Where it starts from the current directory and that was removed, this is said."""
    try:
        return path.absolute()
    except FileNotFoundError as error:
        raise NotFound(
            "the current directory was removed",
            advice="Change to a directory that is there, and run it again.",
        ) from error


def find_repository(start: Path) -> RepositoryPaths:
    """Return the repository at `start`, or the nearest one around it."""
    start = absolute(start)
    if not start.exists():  # a misspelt path must not open a repository around it
        raise NotFound(
            f"no git repository at {start}: nothing is there",
            path=str(start),
            advice="Check the path, or make a repository there with `ropewalk init PATH`.",
        )
    for folder in (start, *start.parents):
        git_dir = _git_dir_at(folder)
        if git_dir is not None:
            return RepositoryPaths(git_dir)
    raise NotFound(
        f"no git repository at {start} or around it",
        path=str(start),
        advice="Make one with `ropewalk init PATH`, or name one with --repo PATH.",
    )


def make_repository(path: Path) -> tuple[RepositoryPaths, list[str]]:
    """Make a bare repository at `path`, or add to the one that is there; also say what was done.

    It is on disk when this returns: entries are durable only if the repository around them is.
    """
    found = _git_dir_at(absolute(path))
    if found is None and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Unavailable(
            f"{path} is there and is no git repository",
            path=str(path),
            advice="Choose an empty or new folder, or run `git init` there first.",
        )
    git_dir = _opened(path, found)
    done = ["made a bare git repository"] if found is None else []
    place = RepositoryPaths(git_dir)
    with file_errors(f"making {git_dir}"):
        Disk().make_directories(git_dir / "objects" / "pack")  # missing after a power cut while git made it
        if not place.keys.is_dir():
            _sync(git_dir)  # first: where the folder of keys is, this was done
        for folder in (place.home, place.keys):
            if not folder.is_dir():
                Disk().make_directories(folder, FOLDER_MODE)
                done.append(f"made {folder.relative_to(git_dir)}/")
    return place, done


def _sync(git_dir: Path) -> None:
    """Sync what git needs to open a repository: neither git nor libgit2 does so when it makes one."""
    for name in ("HEAD", "config"):
        with (git_dir / name).open("rb") as stream:
            sync(stream.fileno())
    for name in ("objects/pack", "objects/info", "objects", "refs", ".", ".."):
        if (git_dir / name).is_dir():
            Disk().fsync_directory(git_dir / name)


def _opened(path: Path, found: Path | None) -> Path:
    """Make the repository that is missing, or see that the one that is there is of a kind we can use."""
    import pygit2

    try:
        if found is None:
            with file_errors(f"making {path}"):
                Disk().make_directories(path)
            return Path(pygit2.init_repository(str(path), bare=True).path).absolute()
        pygit2.Repository(str(found))
    except pygit2.GitError as error:
        raise Unavailable(f"{path}: {error}", path=str(path), advice="Choose another folder.") from error
    return found


def _git_dir_at(folder: Path) -> Path | None:
    """Return the git directory if `folder` is a work tree or a bare repository."""
    dot_git = folder / ".git"
    if dot_git.is_file():
        text = os.fsdecode(dot_git.read_bytes())
        if text.startswith("gitdir:"):
            git_dir = _common_dir((folder / text.removeprefix("gitdir:").strip()).resolve())
            if _is_git_dir(git_dir):
                return git_dir
            raise NotFound(  # as git does: neither make what it points to, nor take the repository around it
                f"{dot_git} points to {git_dir}, which is no git repository",
                path=str(dot_git),
                advice="Repair or remove the .git file.",
            )
    return next((candidate for candidate in (dot_git, folder) if _is_git_dir(candidate)), None)


def _is_git_dir(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir()


def _common_dir(git_dir: Path) -> Path:
    """Return a linked work tree keeps refs and objects in the main repository: that is the place."""
    pointer = git_dir / "commondir"
    if not pointer.is_file():
        return git_dir
    return Path(os.path.normpath(git_dir / os.fsdecode(pointer.read_bytes()).strip()))
