"""The wheel and the sdist: built twice with the same bytes, and installed in a clean environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
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


@pytest.mark.slow
def test_builds_are_reproducible_and_install(tmp_path):
    first, second = build(tmp_path / "one"), build(tmp_path / "elsewhere" / "two")
    assert sorted(first) == sorted(second) and len(first) == 2
    for name, raw in first.items():
        assert raw == second[name], f"{name} differs between two builds"
    (wheel,) = (tmp_path / "one" / "dist").glob("*.whl")
    run(sys.executable, "-m", "venv", "clean", cwd=tmp_path)
    python = tmp_path / "clean" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    # Dependencies come from the environment of the tests: nothing here may reach the network.
    (site,) = (tmp_path / "clean" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = tmp_path / "clean" / "bin" / "ropewalk"
    assert str(site) in run(python, "-c", "import ropewalk; print(ropewalk.__file__)", cwd=tmp_path)
    run(command, "init", "log.git", cwd=tmp_path)
    (tmp_path / "event.json").write_text('{"type":"note","payload":{"text":"hi"}}')
    run(
        command,
        "--repo",
        "log.git",
        "shiplog",
        "append",
        "--ns",
        "notes",
        "--file",
        "event.json",
        cwd=tmp_path,
    )
    assert "ok  1 entries" in run(command, "verify", "log.git", cwd=tmp_path)
    assert (tmp_path / "clean" / "bin" / "gatosd").exists()
    assert (tmp_path / "clean" / "share" / "man" / "man1" / "ropewalk.1").exists()
