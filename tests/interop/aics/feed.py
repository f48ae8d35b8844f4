"""Ask a witness for cosignatures with the client of `aics-witness`: heads, each with proofs by old size, on stdin."""

import json
import sys

from aics_witness.feeder import WitnessClient, merge_cosignatures

[url, vkey], steps = sys.argv[1:], json.load(sys.stdin)
with WitnessClient(url, vkey) as client:
    for head, proofs in steps:

        def prove(old: int, _new: int, proofs: dict[str, list[str]] = proofs) -> list[bytes]:
            return [bytes.fromhex(each) for each in proofs[str(old)]]

        note = merge_cosignatures(head, client.submit(head, prove))
sys.stdout.buffer.write(note)
