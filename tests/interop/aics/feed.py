"""Ask a witness for cosignatures with the client of `aics-witness`: heads, each with proofs by old size, on stdin."""

import json
import sys


def main() -> None:
    """Write the last head with its cosignatures to stdout."""
    from aics_witness.feeder import WitnessClient, merge_cosignatures  # only in an environment of its own

    [url, vkey], steps = sys.argv[1:], json.load(sys.stdin)
    with WitnessClient(url, vkey) as client:
        for head, proofs in steps:

            def prove(old: int, _new: int, proofs: dict[str, list[str]] = proofs) -> list[bytes]:
                return [bytes.fromhex(each) for each in proofs[str(old)]]

            note = merge_cosignatures(head, client.submit(head, prove))
    sys.stdout.buffer.write(note)


if __name__ == "__main__":
    main()
