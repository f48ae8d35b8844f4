"""The wheel and the sdist: built twice with the same bytes, and installed in a clean environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from email import message_from_string
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.docs.snippets import pages, run_page
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
BUILD = "import hatchling.build as b, sys; b.build_wheel(sys.argv[1]); b.build_sdist(sys.argv[1])"
PARTS = (
    "src",
    "docs",
    "examples",
    "tests",
    "vectors",
    "pyproject.toml",
    "hatch_build.py",
    "README.md",
    "LICENSE",
)
JUNK = shutil.ignore_patterns("__pycache__", "*.lib", ".git", "node_modules", ".venv")


def run(*words: str | Path, cwd: Path) -> str:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(cwd), "LANG": "C.UTF-8"}
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(folder: Path) -> dict[str, bytes]:
    """Build both distributions from a copy of the sources; return them by name."""
    source, target = folder / "source", folder / "dist"
    for name in PARTS:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=JUNK)
        else:
            source.mkdir(exist_ok=True, parents=True)
            shutil.copyfile(path, source / name)
    target.mkdir()
    run(sys.executable, "-c", BUILD, target, cwd=source)
    return {path.name: path.read_bytes() for path in target.iterdir()}


def dependencies(*names: str) -> set[str]:
    """Return the installed distributions that `names` need, themselves included."""
    found, waiting = set[str](), [*names]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found.add(name)
        for line in metadata.requires(name) or ():
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                waiting.append(need.name)
    return found


def pack_installed(name: str, folder: Path) -> None:
    """Write an installed distribution as the wheel it came from, so that installers need no index."""
    found = metadata.distribution(name)
    meta = found.read_text("WHEEL")
    assert meta is not None and found.files is not None
    parsed = message_from_string(meta)
    python, abi, _ = parsed.get_all("Tag", [""])[0].split("-")
    platforms = ".".join(dict.fromkeys(tag.split("-")[2] for tag in parsed.get_all("Tag", [])))
    stem = f"{found.metadata['Name'].replace('-', '_').replace('.', '_')}-{found.version}"
    with ZipFile(folder / f"{stem}-{python}-{abi}-{platforms}.whl", "w") as archive:
        for each in found.files:
            if ".." not in each.parts and "__pycache__" not in each.parts:
                archive.write(str(each.locate()), str(each))


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the wheel that was built, and a folder with it and everything that it needs."""
    folder = tmp_path_factory.mktemp("packaging")
    build(folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    for name in dependencies("ropewalk") - {"ropewalk"}:
        pack_installed(name, folder / "dist")
    return wheel, folder / "dist"


def with_pip(wheel: Path, house: Path, home: Path) -> Path:
    run(sys.executable, "-m", "venv", "clean", cwd=home)
    pip = home / "clean" / "bin" / "pip"
    run(pip, "install", "--quiet", "--no-index", "--find-links", house, wheel, cwd=home)
    return home / "clean" / "bin"


def with_pipx(wheel: Path, house: Path, home: Path) -> Path:
    # With pip as its backend, pipx would first fetch a newer pip.
    command = (sys.executable, "-m", "pipx", "install", "--backend", "uv", "--fetch-python", "never")
    run(*command, "--pip-args", f"--no-index --find-links {house}", wheel, cwd=home)
    return home / ".local" / "bin"


def with_uv(wheel: Path, house: Path, home: Path) -> Path:
    command = (sys.executable, "-m", "uv", "tool", "install", "--offline", "--no-index", "--no-config")
    run(*command, "--python", sys.executable, "--find-links", house, wheel, cwd=home)
    return home / ".local" / "bin"


@pytest.mark.slow
@pytest.mark.parametrize("install", [with_pip, with_pipx, with_uv])
def test_installed_wheel_passes_the_tour(install, wheelhouse, tmp_path):
    """Each installer resolves the dependencies itself, from a folder of wheels: nothing may reach the network."""
    programs = install(*wheelhouse, tmp_path)
    names = ["docs/start/platform-engineer.md", *(["docs/tour.md"] if install is with_pip else [])]
    for number, page in enumerate(page for page in pages() if page.name in names):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = run_page(page, folder, programs=programs)
        assert outcome.commands and not outcome.failures, "\n\n".join(outcome.failures)
    assert "ropewalk" in run(programs / "gatosd", "--version", cwd=tmp_path)
    root = (programs / "ropewalk").resolve().parents[1]
    assert (root / "share" / "man" / "man1" / "ropewalk.1").exists()


@pytest.mark.slow
def test_builds_are_reproducible(tmp_path):
    first, second = build(tmp_path / "one"), build(tmp_path / "elsewhere" / "two")
    assert sorted(first) == sorted(second) and len(first) == 2
    for name, raw in first.items():
        assert raw == second[name], f"{name} differs between two builds"
