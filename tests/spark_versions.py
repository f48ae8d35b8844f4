"""Run the tests of the source, of writes and of ingest against several versions of PySpark: `make test-spark-versions`.

Each version is installed into a temporary folder that comes before the installed one, and is deleted after its tests:
`python -m tests.spark_versions [4.0 4.1 4.2] [-k EXPRESSION]`. It prints a line a version and exits 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ("4.0", "4.1", "4.2", "4.3")
TESTS = ("tests/pipeline/test_source.py", "tests/pipeline/test_writes.py", "tests/pipeline/test_ingest.py")
STREAMS_FROM = (4, 2)
NO_STREAMS = "test_writes or (not stream and not lost_message)"  # those read through streams


def main() -> int:
    """Test every version that was named, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("-k", dest="wanted", default="", help="only these tests, as pytest's -k")
    options = parser.parse_args()
    failed = False
    for version in options.versions:
        code, told = run(version, options.wanted)
        print(f"pyspark {version}: {told}", flush=True)
        failed = failed or code != 0
    return int(failed)


def run(version: str, wanted: str) -> tuple[int, str]:
    """Install a version and run the tests; return their exit code and what pytest says last."""
    chosen = [wanted] if wanted else []
    if tuple(map(int, version.split(".")[:2])) < STREAMS_FROM:
        chosen.append(NO_STREAMS)
    narrowed = ["-k", " and ".join(f"({each})" for each in chosen)] if chosen else []
    with tempfile.TemporaryDirectory(prefix="pyspark-") as folder:
        named = f"pyspark=={version}.*" if version.count(".") == 1 else f"pyspark=={version}"
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*install, "--target", folder, named]).returncode:
            return 1, "not installed"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS, *narrowed],
            env={**os.environ, "PYTHONPATH": folder, "ROPEWALK_CACHE": str(Path(folder) / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    return done.returncode, (done.stdout.strip().splitlines() or ["no answer"])[-1]


if __name__ == "__main__":
    sys.exit(main())
