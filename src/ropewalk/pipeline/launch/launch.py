"""Start Spark quietly: find a Java, start the JVM ourselves, keep a class-data archive so that it starts fast.

The stock launcher asks every Java for the module `jdk.incubator.vector`, which small runtimes do not have, and starts
two JVMs where one will do. So the gateway is started here, and pyspark gets its address.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.util
import logging
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.disk.temporary_folder import drop_private_folder, make_private_folder
from ropewalk.errors import Unavailable
from ropewalk.pipeline.launch.java import INSTALL_LINE, JAVA_MINIMUM, Java, archive_flags, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GATEWAY_WAIT_S = 120.0  # a JVM on a loaded machine; it takes three seconds on a quiet one
STOP_WAIT_S = 20.0
CONNECT_PORT = 15002  # Spark Connect's own
CONNECT_WAIT_S = 10.0
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
# Compile once and lightly. Room for code compiled so is a fifth of the usual, and Spark fills it in minutes; from then
# on the JVM would throw code away to compile it again.
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=160m")
# What py4j logs to the root logger when an interrupt cuts a call.
_PY4J_NOISE = ("KeyboardInterrupt while", "Exception while sending command")
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
class Setting:
    """How Spark is to be started. `cache` is where the class-data archive is kept; None keeps none."""

    master: str = "local[*]"
    remote: str | None = None
    cache: Path | None = None
    memory_mb: int = 1024
    quick: bool = True  # right for commands, wrong for drivers that run for hours
    log_level: str = "off"
    options: Mapping[str, str] = field(default_factory=dict)


def require_spark() -> None:
    """Refuse with the line that installs what is missing."""
    for name in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(name) is None:
            raise Unavailable(
                f"the pipeline needs {name}, which is not installed", name=name, advice=f"Run: {INSTALL_LINE}"
            )


def launch(setting: Setting, environment: MutableMapping[str, str]) -> SparkSession:
    """Return a Spark session: on a JVM of our own, or at a Spark Connect server where `remote` names one.

    `environment` is the process's own, because pyspark and the JVM read it: it gets the gateway's address.
    """
    require_spark()
    if setting.log_level == "off":
        _quieten()
    if setting.remote is not None:
        return _connect(setting)
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

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


def _quieten() -> None:
    """Keep pyspark from printing the JVM's stack with every error that it raises."""
    from pyspark.logger import PySparkLogger

    # py4j logs every interrupt at length, some of them to the root logger.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: not record.getMessage().startswith(_PY4J_NOISE))
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # As its own class, which takes more arguments.
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


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
        try:
            # Writing the archive takes seconds that no command should wait for.
            self.process.wait(0 if self.keeps_archive else STOP_WAIT_S)
        except subprocess.TimeoutExpired:
            threading.Thread(target=self.process.wait, name="ropewalk-jvm-end", daemon=True).start()
        drop_private_folder(self.folder)


_running: dict[str, _Jvm] = {}


@atexit.register
def _end_at_exit() -> None:
    jvm = _running.pop("jvm", None)
    if jvm is not None:
        jvm.end()


def _options(setting: Setting) -> dict[str, str]:
    local = setting.master.startswith("local")
    given = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
        # Here shuffles have as many parts as there are cores; planning each of them anew costs a fifth of a small job.
        "spark.sql.adaptive.enabled": "false" if setting.master.startswith("local[") else "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.python.worker.reuse": "true",
    }
    if local:
        given |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if re.fullmatch(r"local(\[.*\])?", setting.master):
        given["spark.authenticate"] = "true"  # Spark makes the secret; a cluster is configured with one
    if setting.master.startswith("local-cluster"):
        given["spark.executor.extraJavaOptions"] = " ".join(
            [f"-Dlog4j2.configurationFile={_log_file(setting)}", *(QUICK if setting.quick else ())]
        )
    return given | dict(setting.options)


def _connect(setting: Setting) -> SparkSession:
    from pyspark.sql import SparkSession

    assert setting.remote is not None
    _require_listener(setting.remote)
    try:
        builder: Any = SparkSession.builder.remote(setting.remote)
        for name, value in setting.options.items():
            builder = builder.config(name, value)
        spark: SparkSession = builder.getOrCreate()
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    except Exception as error:
        if "pyspark" not in type(error).__module__ and not isinstance(error, (ImportError, OSError)):
            raise
        raise _no_server(setting.remote, str(error).splitlines()[0][:200]) from error
    return spark


def _require_listener(remote: str) -> None:
    """Raise if nothing listens at the address; Spark's own client would ask again for ten minutes."""
    found = re.match(r"sc://(\[[^\]]+\]|[^:/;]+)(?::([0-9]{1,5}))?(?:/|$)", remote)
    if found is None:
        return  # pyspark says what is wrong with it
    host, port = found[1].strip("[]"), int(found[2] or CONNECT_PORT)
    try:
        socket.create_connection((host, port), CONNECT_WAIT_S).close()
    except (OSError, OverflowError) as error:
        raise _no_server(remote, str(error)) from error


def _no_server(remote: str, why: str) -> Unavailable:
    return Unavailable(
        f"no Spark Connect server at {remote}: {why}",
        remote=remote,
        advice="Start one with Spark's sbin/start-connect-server.sh, or leave --remote out.",
    )


def _start_jvm(setting: Setting, environment: MutableMapping[str, str]) -> _Jvm:
    import pyspark

    java = find_java(environment)
    home = Path(pyspark.__file__).parent
    folder = make_private_folder("jvm")
    told = folder / "gateway"
    archive = archive_flags(java, home / "jars", setting.cache) if setting.cache is not None else []
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
    # A separate session: an interrupt is for the command, which then ends Spark in order.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=given, start_new_session=True
    )
    deadline = time.monotonic() + GATEWAY_WAIT_S
    while not told.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            drop_private_folder(folder)
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
    """Return Spark's folder as one that may be written to: workers of a small cluster keep their files inside it."""
    room = folder / "spark"
    room.mkdir()
    for child in home.iterdir():
        if child.name != "work":
            (room / child.name).symlink_to(child)
    return room


def _scala_version(jars: Path) -> str:
    """Return what the launcher of executors would look for in a folder that only Spark's developers have."""
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
        flags += QUICK
    return flags


def _log_file(setting: Setting) -> Path:
    """Return the log settings, in a folder that outlives the process: executors read them too."""
    text = QUIET.format(level=setting.log_level)
    name = f"ropewalk-log4j2-{hashlib.sha256(text.encode()).hexdigest()[:12]}-{os.getuid()}.properties"
    path = Path(tempfile.gettempdir()) / name
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    return path
