"""Write the generated vectors, or with --check say which files are stale."""

from __future__ import annotations

import argparse
import sys

from vectors.generate import HOME, generated, modules


def main() -> int:
    everything = modules()
    parser = argparse.ArgumentParser(prog="python -m vectors.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"only these: {', '.join(everything)}")
    chosen = parser.parse_args()
    unknown = set(chosen.areas) - set(everything)
    if unknown:
        parser.error(f"no generator named {', '.join(sorted(unknown))}")
    files = {path: text for area in chosen.areas or everything for path, text in generated(area).items()}
    stale = [path for path, text in files.items() if _stored(path) != text]
    for path in stale:
        print(f"{'stale' if chosen.check else 'wrote'}  vectors/{path}")
        if not chosen.check:
            (HOME / path).parent.mkdir(parents=True, exist_ok=True)
            (HOME / path).write_text(files[path], encoding="utf-8")
    print(
        f"{len(files)} generated files, {len(stale)} {'stale' if chosen.check else 'written'}",
        file=sys.stderr,
    )
    return 1 if chosen.check and stale else 0


def _stored(path: str) -> str | None:
    found = HOME / path
    return found.read_text(encoding="utf-8") if found.exists() else None


if __name__ == "__main__":
    sys.exit(main())
