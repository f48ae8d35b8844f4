"""Generate the protobuf code of the ledger service: `python docs/generate_proto.py [--check]`."""

from __future__ import annotations

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = "ropewalk/schemas/v1/ledger/ledger.proto"  # under this name, which no other package uses
FOLDER = ROOT / "src/ropewalk/ledger/remote/proto"
NAMES = ("ledger_pb2.py", "ledger_pb2.pyi")


def generated() -> dict[str, str]:
    """Return the generated files."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        code = protoc.main(
            [
                "protoc",
                f"-I{ROOT / 'src'}",
                f"-I{files('grpc_tools') / '_proto'}",
                f"--python_out={folder}",
                f"--pyi_out={folder}",
                SCHEMA,
            ]
        )
        if code != 0:
            raise SystemExit(code)
        return {name: ((Path(folder) / SCHEMA).parent / name).read_text() for name in NAMES}


def main() -> int:
    """Write the files, or with --check compare them."""
    made = generated()
    if "--check" in sys.argv:
        stale = [name for name, text in made.items() if (FOLDER / name).read_text() != text]
        print("\n".join(f"{name} is not what the schema gives; run docs/generate_proto.py" for name in stale))
        return 1 if stale else 0
    for name, text in made.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
