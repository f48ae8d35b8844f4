"""`python -m bench [NAME …] [--quick] [--json FILE]`: run benchmarks and print one table."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.harness import Result

HERE = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def table(results: list[Result]) -> Table:
    shown = Table(title="ours beside the peer, medians of one run")
    for heading in ("job", "ours", "peer"):
        shown.add_column(heading)
    for heading in ("ours /s", "peer /s", "ratio", "target", ""):
        shown.add_column(heading, justify="right")
    for r in results:
        target = "–" if r.target is None else f"≥ {r.target:g}×"
        mark = {True: "✓", False: "missed", None: ""}[r.met]
        shown.add_row(
            r.job,
            r.ours,
            r.peer,
            f"{r.ours_per_s:,.0f}",
            f"{r.peer_per_s:,.0f}",
            f"{r.ratio:.2f}×",
            target,
            mark,
        )
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; default all")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the report goes")
    options = parser.parse_args()
    unknown = set(options.names) - set(names())
    if unknown:
        parser.error(f"no benchmark called {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    results: list[Result] = []
    for name in options.names or names():
        print(f"… {name}", file=sys.stderr, flush=True)
        results += importlib.import_module(f"bench.bench_{name}").run(options.quick)
    Console(width=150 if not sys.stdout.isatty() else None).print(table(results))
    for note in sorted({f"{r.job}: {r.note}" for r in results if r.note}):
        print(note)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "quick": options.quick}
    report = {"machine": machine, "results": [r.to_json() for r in results]}
    options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    print(f"report: {options.json}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
