"""Receipts in COSE form (RFC 9942) for third-party tools, from the SHA-256 tree over the headers.

The leaf is a block's header, so a receipt proves: this block is at this height under a root the log has signed. The
path from an envelope to its block's header is included, unsigned, because it proves itself: `inner`.

    protected     1 alg · 4 key id · 15 {1 origin, 2 subject} · 395 = 1 (RFC9162_SHA256)
    unprotected   396 {-1: [inclusion proof]} · "inner" {header, index, path}
    payload       detached: the verifier computes the root
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import cbor2

from ropewalk.errors import InvalidProof, ProofRefused, RopewalkError
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import PublicKey, SigningKey
from ropewalk.kernel.report import Report, Step
from ropewalk.ledger.block.block import Header
from ropewalk.ledger.envelope.model import Envelope

ALG: Final = {"ed25519": -8, "p256": -7, "secp256k1": -47}
RFC9162_SHA256: Final = 1
SIGN1_TAG: Final = 18
RECEIPT_BYTES_MAX: Final = 1 << 20
_ALG, _KID, _CLAIMS, _VDS, _VDP = 1, 4, 15, 395, 396
_INCLUSION: Final = -1
_PATH_MAX: Final = 63


@dataclass(frozen=True, slots=True)
class CoseReceipt:
    """A parsed receipt; nothing is verified yet."""

    alg: int
    issuer: str
    subject: str
    size: int
    height: int
    path: tuple[bytes, ...]
    header: bytes
    index: int
    inner_path: tuple[bytes, ...]
    protected: bytes
    signature: bytes


def make_receipt(
    key: SigningKey,
    *,
    origin: str,
    envelope_id: bytes,
    header: Header,
    index: int,
    inner_path: tuple[bytes, ...],
    size: int,
    path: tuple[bytes, ...],
    root: bytes,
) -> bytes:
    """Return the receipt of an envelope in the block with this header, under the root of `size` headers.

    >>> from ropewalk.ledger.block.block import GENESIS
    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> header = Header("ea.core", 0, GENESIS, bytes(32), 0, bytes(32), 1)
    >>> root = merkle.SHA256.leaf(header.encode())
    >>> raw = make_receipt(key, origin="x/ea.core", envelope_id=bytes(32), header=header, index=0,
    ...                    inner_path=(), size=1, path=(), root=root)
    >>> parse_receipt(raw).height
    0
    """
    claims = {1: origin, 2: envelope_id.hex()}
    protected = _encode(
        {_ALG: ALG[key.alg], _KID: key.public.identity(), _CLAIMS: claims, _VDS: RFC9162_SHA256}
    )
    unprotected = {
        _VDP: {_INCLUSION: [_encode([size, header.height, list(path)])]},
        "inner": {"header": header.encode(), "index": index, "path": list(inner_path)},
    }
    signature = key.sign(_preimage(protected, root))
    return _encode(cbor2.CBORTag(SIGN1_TAG, [protected, unprotected, None, signature]))


def parse_receipt(raw: bytes) -> CoseReceipt:
    """Parse a receipt; only the form is checked.

    >>> parse_receipt(b"")
    Traceback (most recent call last):
    ropewalk.errors.InvalidProof: receipt: not CBOR
    """
    outer = _decode(raw)
    if not isinstance(outer, cbor2.CBORTag) or outer.tag != SIGN1_TAG:
        raise _wrong("not a COSE_Sign1 message")
    parts = _plain(outer.value)
    if not isinstance(parts, list) or len(parts) != 4:
        raise _wrong("a COSE_Sign1 message must have four parts")
    protected, unprotected, payload, signature = parts
    if payload is not None or not isinstance(protected, bytes) or not isinstance(signature, bytes):
        raise _wrong("the payload is detached, protected headers and signature are bytes")
    head = _plain(_decode(protected))
    if not isinstance(head, dict) or head.keys() != {_ALG, _KID, _CLAIMS, _VDS}:
        raise _wrong("expected the protected headers 1, 4, 15 and 395")
    claims = head[_CLAIMS]
    if head[_VDS] != RFC9162_SHA256 or not isinstance(claims, dict) or claims.keys() != {1, 2}:
        raise _wrong("only RFC9162_SHA256 trees with issuer and subject are known")
    if not isinstance(unprotected, dict) or unprotected.keys() != {_VDP, "inner"}:
        raise _wrong("expected a proof and the way from the envelope to the header")
    proofs = unprotected[_VDP].get(_INCLUSION) if isinstance(unprotected[_VDP], dict) else None
    if not isinstance(proofs, list) or len(proofs) != 1 or not isinstance(proofs[0], bytes):
        raise _wrong("expected one inclusion proof")
    proof, inner = _plain(_decode(proofs[0])), unprotected["inner"]
    if not isinstance(proof, list) or len(proof) != 3:
        raise _wrong("an inclusion proof must have size, index and path")
    if not isinstance(inner, dict) or inner.keys() != {"header", "index", "path"}:
        raise _wrong("inner must have header, index and path")
    if not isinstance(inner["header"], bytes) or not all(isinstance(claims[name], str) for name in (1, 2)):
        raise _wrong("a header is bytes, claims are texts")
    return CoseReceipt(
        _number(head[_ALG], negative=True),
        claims[1],
        claims[2],
        _number(proof[0]),
        _number(proof[1]),
        _path(proof[2]),
        inner["header"],
        _number(inner["index"]),
        _path(inner["path"]),
        protected,
        signature,
    )


def verify_receipt(raw: bytes, envelope: Envelope, signer: PublicKey) -> CoseReceipt:
    """Return the receipt if it proves that the signer's log holds this envelope. Offline."""
    receipt = parse_receipt(raw)
    _check_subject(receipt, envelope)
    root = _tree_root(receipt, envelope.id)
    _check_signature(receipt, root, signer)
    return receipt


def check_receipt(raw: bytes, envelope: Envelope | None, signers: Sequence[PublicKey]) -> Report:
    """Verify a receipt step by step. Without an envelope only its id is known, without signers only a root."""
    receipt = parse_receipt(raw)
    steps = [Step.optional("envelope", "name the envelope, to see that the receipt is about its bytes")]
    if envelope is not None:
        steps = [_step("envelope", partial(_check_subject, receipt, envelope), envelope.hex_id)]
    where = f"envelope {receipt.index} of block {receipt.height}, under a root of {receipt.size} blocks"
    root = b""
    try:
        root = _tree_root(receipt, hash_from_hex(receipt.subject) or b"")
        steps.append(Step("inclusion", "passed", where))
    except RopewalkError as error:
        steps.append(Step("inclusion", "failed", error.detail))
    if not signers:
        steps.append(Step.untrusted("signature", f"no key is trusted to sign for {receipt.issuer}"))
    elif root:
        steps.append(_signed(receipt, root, signers))
    else:
        steps.append(Step("signature", "not_checked", "there is no root it could be over"))
    return Report.of(steps, entries=1)


def _signed(receipt: CoseReceipt, root: bytes, signers: Sequence[PublicKey]) -> Step:
    for signer in signers:
        step = _step("signature", partial(_check_signature, receipt, root, signer), signer.did())
        if step.status == "passed":
            return step
    return Step("signature", "failed", f"none of {len(signers)} trusted keys signed this root")


def _step(name: str, check: Callable[[], None], detail: str) -> Step:
    try:
        check()
    except RopewalkError as error:
        return Step(name, "failed", error.detail)
    return Step(name, "passed", detail)


def _check_subject(receipt: CoseReceipt, envelope: Envelope) -> None:
    if receipt.subject != envelope.hex_id:
        raise ProofRefused(
            f"the receipt is about {receipt.subject[:64]}, not {envelope.hex_id}", step="subject"
        )


def _tree_root(receipt: CoseReceipt, envelope_id: bytes) -> bytes:
    """Return the root that an envelope's path through its block leads to."""
    try:
        header = jcs.parse_canonical(receipt.header)
        if not isinstance(header, dict):
            raise InvalidProof("receipt: the header must be an object")
        root = bytes.fromhex(str(header.get("merkle_root")))
        count, height = header.get("envelope_count"), header.get("height")
    except ValueError:
        raise _wrong("the header has no root") from None
    except RopewalkError as error:
        raise _wrong(f"the header: {error.detail}") from error
    if type(count) is not int or height != receipt.height:
        raise ProofRefused(f"the header is of block {height}, the proof of {receipt.height}", step="height")
    merkle.verify_inclusion(envelope_id, receipt.index, count, receipt.inner_path, root)
    return _root_of(merkle.SHA256.leaf(receipt.header), receipt.height, receipt.size, receipt.path)


def _check_signature(receipt: CoseReceipt, root: bytes, signer: PublicKey) -> None:
    if receipt.alg != ALG[signer.alg]:
        raise ProofRefused(f"algorithm {receipt.alg} is not that of the {signer.alg} key", step="signature")
    signer.verify(_preimage(receipt.protected, root), receipt.signature)


def _root_of(leaf: bytes, index: int, size: int, path: tuple[bytes, ...]) -> bytes:
    """Return the root a path leads to; the shape is checked as for any proof."""
    try:
        merkle.verify_inclusion(leaf, index, size, path, bytes(32), merkle.SHA256)
    except ProofRefused as refused:
        return bytes.fromhex(refused.fields["got"])
    return bytes(32)


def _preimage(protected: bytes, payload: bytes) -> bytes:
    return _encode(["Signature1", protected, b"", payload])


def _encode(value: Any) -> bytes:
    return cbor2.dumps(value, canonical=True)


def _decode(raw: bytes) -> Any:
    """Decode one item of deterministic CBOR."""
    if len(raw) > RECEIPT_BYTES_MAX:
        raise _wrong(f"{len(raw)} bytes; at most {RECEIPT_BYTES_MAX}")
    try:
        value = cbor2.loads(raw)
        again = _encode(value)
    except (cbor2.CBORError, ValueError, TypeError, RecursionError, OverflowError, MemoryError) as error:
        raise _wrong("not CBOR") from error
    if again != raw:
        raise _wrong("not deterministic CBOR")
    return value


def _plain(value: Any) -> Any:
    if hasattr(value, "items"):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _number(value: Any, *, negative: bool = False) -> int:
    if type(value) is not int or (value < 0 and not negative):
        raise _wrong("sizes and places are natural numbers")
    return value


def _path(value: Any) -> tuple[bytes, ...]:
    if not isinstance(value, list) or len(value) > _PATH_MAX:
        raise _wrong("a path must be a short list of hashes")
    if not all(isinstance(each, bytes) and len(each) == 32 for each in value):
        raise _wrong("hashes must have 32 bytes")
    return tuple(value)


def _wrong(what: str) -> InvalidProof:
    return InvalidProof(f"receipt: {what}")
