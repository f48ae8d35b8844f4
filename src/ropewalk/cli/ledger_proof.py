"""What `ropewalk verify` does with proof files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropewalk.cli.manners import parse_input, read_input, telling

if TYPE_CHECKING:
    from ropewalk.cli.verify import Asked

__all__ = ["verify_proof_file", "verify_receipt_file"]


def verify_receipt_file(asked: Asked) -> dict[str, Any]:
    """The report on a COSE receipt."""
    from ropewalk.ledger.envelope import parse_wire
    from ropewalk.ledger.receipts import check_receipt
    from ropewalk.ledger.trust import parse_trust

    believed = parse_input(asked.trust, parse_trust) if asked.trust is not None else None
    given = parse_input(asked.envelope, parse_wire) if asked.envelope is not None else None
    signers = believed.block_signers if believed is not None else ()
    return parse_input(str(asked.path), lambda raw: check_receipt(raw, given, signers)).to_json()


def verify_proof_file(asked: Asked) -> dict[str, Any]:
    """The report on a proof: of an envelope, of a range of blocks, of one head under another, of a fork."""
    from ropewalk.kernel import jcs
    from ropewalk.ledger.fork import parse_fork, verify_fork
    from ropewalk.ledger.proof import Proof, parse_consistency, parse_proof, parse_range, verify_proof
    from ropewalk.ledger.trust import parse_trust

    raw = read_input(str(asked.path))
    with telling(str(asked.path)):
        value = jcs.parse(raw)
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind == "range":
            return parse_range(raw).report().to_json()
        if kind == "consistency":
            return parse_consistency(raw).report().to_json()
        found = parse_fork(raw) if kind == "fork" else parse_proof(raw)
    believed = parse_input(asked.trust, parse_trust) if asked.trust is not None else None
    report = verify_proof(found, believed) if isinstance(found, Proof) else verify_fork(found, believed)
    return report.to_json()
