"""Builds the compiled loops into the wheel, where there is a C compiler. Elsewhere Python does their work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "src/ropewalk/native/loops.lib"
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden"]


class NativeLoops(BuildHookInterface):  # type: ignore[type-arg]
    """Called by `pip install`, also of an editable one."""

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        library = Path(self.root, LIBRARY)
        if not build(library):
            library.unlink(missing_ok=True)  # one of other sources would be worse than none
            return
        # The library knows nothing of Python, so one wheel serves every version of it.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        build_data["artifacts"].append(LIBRARY)


def build(library: Path, *flags: str, sources: Path | None = None) -> bool:
    """Compile the loops of a folder (the library's own, unless told); False, and a word about it, if that fails."""
    named = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if named is None:
        print("ropewalk: no C compiler; the loops run in Python", file=sys.stderr)
        return False
    texts = sorted(str(path) for path in (sources or library.parent).glob("*.c"))
    # Not written over: a process may have the old one mapped, and it must stay as it is.
    beside = library.with_suffix(f".{os.getpid()}")
    try:
        subprocess.run([*named.split(), *FLAGS, *flags, "-o", str(beside), *texts], check=True)
        beside.replace(library)
    except (OSError, subprocess.CalledProcessError) as error:
        print(
            f"ropewalk: the loops run in Python, because they could not be compiled: {error}", file=sys.stderr
        )
        return False
    finally:
        beside.unlink(missing_ok=True)
    return True
