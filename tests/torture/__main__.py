"""`python -m tests.torture [NAME …] [--quick]`: run the long reliability runs and write their reports to build/."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    names = sorted(path.stem for path in HERE.glob("*.py") if not path.stem.startswith("_"))
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; default all")
    parser.add_argument("--quick", action="store_true", help="a small share, to see that everything runs")
    options = parser.parse_args()
    folder = Path("build")
    folder.mkdir(exist_ok=True)
    held = True
    for name in options.names or names:
        print(f"… {name}", file=sys.stderr, flush=True)
        module = importlib.import_module(f"tests.torture.{name}")
        if not hasattr(module, "run"):  # a run that is its own command and writes its own report
            held = (
                subprocess.run([sys.executable, "-m", f"tests.torture.{name}"], check=False).returncode == 0
                and held
            )
            continue
        report = module.run(options.quick)
        target = folder / f"torture-{name}.json"
        target.write_text(json.dumps(report, indent=2) + "\n")
        print(f"{'ok' if report['ok'] else 'FAILED'}  {name}  report: {target}", flush=True)
        held = held and report["ok"]
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
