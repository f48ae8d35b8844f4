"""Every parser of the product under a coverage-guided fuzzer: it takes bytes or refuses them, and does nothing else.

`make torture ONLY=fuzz` gives every parser of `tests/fuzz` its share of executions, each in a process of its own, and
writes counts and findings to build/torture-fuzz.json. A finding is the first input of its kind, in hex; give it to the
parser again with `python -m tests.torture.fuzz --again NAME HEX`. All inputs that reached new code stay in
build/fuzz-corpus/NAME, and later runs on this machine start from them. With `--keep`, the smallest of them become
vectors (vectors/fuzz/NAME.json), at most 24 that are taken and 24 that are refused, with the number of executions so
far; runs on other machines start from those. `--minutes` bounds a run, which begins with the parsers that had the
fewest. The fuzzer, atheris, is installed with its pinned hash into build/fuzz, beside the product's environment and
not into it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

RUNS = 50_000
RUNS_QUICK = 1_000
# They go through files or many signatures.
SLOW = {"git_index", "git_pack", "segment", "packed_bundle", "bundle"}
SECONDS_MAX = 900
FINDINGS_MAX = 20
KEPT = 24  # inputs of one parser that are taken, and as many that are refused
KEPT_BYTES_MAX = 512
VECTORS = Path("vectors") / "fuzz"
LOCK = Path(__file__).with_name("fuzz.lock")
TOOLS = Path("build") / "fuzz"
CORPUS = Path("build") / "fuzz-corpus"


def run(quick: bool) -> dict[str, Any]:
    """The run `make torture` does."""
    return fuzz(RUNS_QUICK if quick else RUNS)


def fuzz(
    runs: int, names: list[str] | None = None, *, keep: bool = False, seconds: float = float("inf")
) -> dict[str, Any]:
    """Every parser in turn; the report has counts and findings for each."""
    from tests.fuzz.parsers import PARSERS

    _install()
    started = time.monotonic()
    known = {each.name: kept_inputs(each.name) for each in PARSERS if names is None or each.name in names}
    parsers: dict[str, Any] = {}
    with FuzzServer() as server:
        for name in sorted(known, key=lambda name: known[name]["executions"]):
            if time.monotonic() - started > seconds:
                break
            parsers[name] = server.fuzz(name, runs // 5 if name in SLOW else runs)
            corpus = parsers[name].pop("corpus", [])
            if keep and not parsers[name]["findings"]:
                _keep(name, corpus, parsers[name]["executions"])
            print(f"  {name}: {parsers[name]['executions']:,} executions", file=sys.stderr, flush=True)
    findings = sum(len(each["findings"]) for each in parsers.values())
    return {
        "ok": not findings,
        "what": "coverage-guided fuzzing: only errors of ropewalk.errors come out, what is taken comes out again",
        "seconds": round(time.monotonic() - started, 1),
        "executions": sum(each["executions"] for each in parsers.values()),
        "findings": findings,
        "parsers": parsers,
    }


def kept_inputs(name: str) -> dict[str, Any]:
    """Return what earlier runs kept of a parser, and how often they ran it."""
    path = VECTORS / f"{name}.json"
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return {"parser": name, "executions": 0, "taken": [], "refused": [], **kept}


def _install() -> None:
    if (TOOLS / "atheris").is_dir():
        return
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*pip, "--target", str(TOOLS), "-r", str(LOCK)], check=True)


class FuzzServer:
    """A process with every parser loaded and instrumented, which takes 20 s; it forks for each parser."""

    def __init__(self) -> None:
        path = [str(TOOLS.absolute()), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.fuzz", "--serve"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> FuzzServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def fuzz(self, name: str, runs: int) -> dict[str, Any]:
        """Fuzz one parser in a process of its own: what hangs or kills it is a finding too."""
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            assert self._process.stdin is not None and self._process.stdout is not None
            print(json.dumps([name, runs, folder]), file=self._process.stdin, flush=True)
            said = self._process.stdout.readline()
            answer = Path(folder) / "answer.json"
            if answer.exists():
                return dict(json.loads(answer.read_text()))
            why = json.loads(said) if said else "the server ended"
        return {
            "executions": 0,
            "taken": 0,
            "findings": [{"error": "the process ended by itself", "said": why}],
        }


def _serve() -> None:
    """Fork for every line of stdin, and answer with the end of what the child wrote to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the fuzzer writes there
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["ropewalk"]):
        importlib.import_module("tests.fuzz.parsers")
    for line in sys.stdin:
        name, runs, folder = json.loads(line)
        said = Path(folder) / "said"
        child = os.fork()
        if not child:
            os.environ["TMPDIR"] = (
                folder  # it ends without cleaning up: all that it leaves is to be in one place
            )
            tempfile.tempdir = None
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT, 0o600), 2)
            _fuzz_here(name, runs, Path(folder))
        late = threading.Timer(SECONDS_MAX, os.kill, (child, signal.SIGKILL))
        late.start()
        os.waitpid(child, 0)
        late.cancel()
        print(json.dumps(said.read_text(errors="replace")[-2000:]), file=answers, flush=True)


def _fuzz_here(name: str, runs: int, folder: Path) -> None:
    """Feed one parser until it had enough; never returns."""
    from tests.fuzz.parsers import PARSERS, offer

    atheris = importlib.import_module("atheris")
    parser = next(each for each in PARSERS if each.name == name)
    corpus, start = CORPUS / name, folder / "start"
    corpus.mkdir(parents=True, exist_ok=True)
    start.mkdir()
    kept = kept_inputs(name)
    earlier = [bytes.fromhex(text) for text in kept["taken"] + kept["refused"]]
    for number, sample in enumerate([*parser.samples, *earlier]):
        (start / str(number)).write_bytes(sample)
    words = folder / "words.dict"
    words.write_text(_dictionary(parser.samples))
    counts = {"executions": 0, "taken": 0}
    findings: dict[str, dict[str, Any]] = {}

    def one(raw: bytes) -> None:
        counts["executions"] += 1
        try:
            counts["taken"] += offer(parser, raw)
        except BaseException as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno} {last.name}"
            kind = f"{type(error).__name__} at {where}"
            if len(findings) < FINDINGS_MAX or kind in findings:
                seen = findings.setdefault(kind, {"error": kind, "detail": str(error)[:200], "times": 0})
                seen.setdefault("input", raw[:4096].hex())
                seen["times"] += 1
        if counts["executions"] >= runs:
            small = (each.read_bytes() for each in corpus.iterdir() if each.stat().st_size <= KEPT_BYTES_MAX)
            found = [raw.hex() for raw in small]
            report = {**counts, "findings": list(findings.values()), "corpus": found}
            (folder / "answer.json").write_text(json.dumps(report))
            os._exit(0)

    longest = max(len(sample) for sample in parser.samples)
    options = [f"-max_len={max(256, longest + 512)}", "-timeout=60", "-rss_limit_mb=4096", "-verbosity=0"]
    options += [f"-artifact_prefix={folder}/", f"-dict={words}"]
    atheris.Setup([sys.argv[0], *options, str(corpus), str(start)], one)  # it writes to the first
    atheris.Fuzz()


def _keep(name: str, corpus: list[str], executions: int) -> None:
    """Write the smallest inputs of all runs, with the parser's verdict of each."""
    from tests.fuzz.parsers import PARSERS, offer

    parser = next(each for each in PARSERS if each.name == name)
    document = kept_inputs(name)
    document["executions"] += executions
    verdicts: dict[str, list[str]] = {"taken": [], "refused": []}
    for text in sorted(
        {*document["taken"], *document["refused"], *corpus}, key=lambda text: (len(text), text)
    ):
        verdicts["taken" if offer(parser, bytes.fromhex(text)) else "refused"].append(text)
    document |= {verdict: texts[:KEPT] for verdict, texts in verdicts.items()}
    VECTORS.mkdir(exist_ok=True)
    (VECTORS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")


def _dictionary(samples: tuple[bytes, ...]) -> str:
    """Words to put in and take out whole: the names in the samples, and what gives documents their form."""
    names = {name for sample in samples for name in re.findall(rb'"[a-zA-Z_.0-9:/-]{1,40}"', sample)}
    names |= {
        b"null",
        b"true",
        b"{}",
        b"[]",
        b'""',
        b",",
        b":",
        b"1e21",
        b"-0",
        b"9007199254740993",
        b"\\ud800",
    }
    lines = ("".join(f"\\x{byte:02x}" for byte in name) for name in sorted(names))
    return "".join(f'"{line}"\n' for line in lines)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.torture.fuzz", description=__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help="parsers; default all")
    options.add_argument("--runs", type=int, default=RUNS)
    options.add_argument("--minutes", type=float, default=float("inf"), help="start no parser after so long")
    options.add_argument(
        "--keep", action="store_true", help="write the inputs that reached new code as vectors"
    )
    options.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--again", nargs=2, metavar=("NAME", "HEX"), help="give one input to one parser")
    asked = options.parse_args()
    if asked.serve:
        _serve()
        return 0
    if asked.again:
        from tests.fuzz.parsers import PARSERS, offer

        parser = next(each for each in PARSERS if each.name == asked.again[0])
        print("taken" if offer(parser, bytes.fromhex(asked.again[1])) else "refused")
        return 0
    report = fuzz(asked.runs, asked.names or None, keep=asked.keep, seconds=asked.minutes * 60)
    target = Path("build") / "torture-fuzz.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{'ok' if report['ok'] else 'FAILED'}  {report['executions']:,} executions, report: {target}")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
