"""Intel DCAP quotes, read: a header, the report of an enclave or a trust domain, and who vouches for its key.

Versions 3 (SGX), 4 (SGX and TDX) and 5 (with a typed body), each signed with ECDSA P-256. Layout: Intel's DCAP quote
structures. Nothing is verified here; everything that is read is either signed or compared with what is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ropewalk.errors import Unverified

QUOTE_BYTES_MAX: Final = 1 << 16  # those in the field have about five thousand
HEADER_BYTES: Final = 48
ENCLAVE_BYTES: Final = 384
_ECDSA_P256: Final = 2
_SGX, _TDX = 0x00, 0x81
_INTEL: Final = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")  # whose quoting enclave it is
_CERTIFICATES, _QE_REPORT = 5, 6  # kinds of certification data
_BODIES: Final = {1: (_SGX, ENCLAVE_BYTES), 2: (_TDX, 584), 3: (_TDX, 648)}  # of version 5, by their type


@dataclass(frozen=True, slots=True)
class EnclaveReport:
    """The SGX report of an enclave."""

    misc_select: bytes
    attributes: bytes
    mr_enclave: bytes
    mr_signer: bytes
    isv_prodid: int
    isv_svn: int
    report_data: bytes

    @property
    def debug(self) -> bool:
        """Whether a debugger may look into it."""
        return bool(self.attributes[0] & 0x02)


@dataclass(frozen=True, slots=True)
class TdReport:
    """The TDX report of a trust domain and its module."""

    tee_tcb_svn: bytes
    mr_seam: bytes
    mr_signer_seam: bytes
    seam_attributes: bytes
    td_attributes: bytes
    mr_td: bytes
    mr_config_id: bytes
    mr_owner: bytes
    mr_owner_config: bytes
    rtmrs: tuple[bytes, bytes, bytes, bytes]
    report_data: bytes

    @property
    def debug(self) -> bool:
        """Whether it is under debug; the first byte of its attributes holds what makes it untrusted."""
        return self.td_attributes[0] != 0


@dataclass(frozen=True, slots=True)
class Quote:
    """A report with the signature of a quoting enclave, and the report of that enclave with the platform's."""

    version: int
    tee: Literal["sgx", "tdx"]
    signed: bytes
    body: EnclaveReport | TdReport
    signature: bytes
    key: bytes
    qe_raw: bytes
    qe: EnclaveReport
    qe_signature: bytes
    qe_auth: bytes
    certificates: bytes


def parse_quote(raw: bytes) -> Quote:
    """Return a quote from its bytes, of a version that is known.

    >>> parse_quote(b"")
    Traceback (most recent call last):
    ropewalk.errors.Unverified: the quote is cut off in its header
    """
    rest = _Rest(raw)
    header = rest.take(HEADER_BYTES, "header")
    version, key_type = _number(header[:2]), _number(header[2:4])
    if version not in (3, 4, 5):
        raise Unverified(f"quote of version {version}; known are 3 to 5")
    if key_type != _ECDSA_P256:
        raise Unverified(f"attestation key of type {key_type}; known is {_ECDSA_P256}, ECDSA P-256")
    if header[12:28] != _INTEL:
        raise Unverified("the quoting enclave is not Intel's")
    tee = _SGX if version == 3 else _number(header[4:8])
    body = _body(rest, version, tee)
    signed = raw[: rest.at]
    rest.end_after(_number(rest.take(4, "length of the signature data")))
    signature, key = rest.take(64, "signature"), rest.take(64, "attestation key")
    if version >= 4:
        _announced(rest, _QE_REPORT)
    qe_raw, qe_signature = rest.take(ENCLAVE_BYTES, "QE report"), rest.take(64, "QE report's signature")
    qe_auth = rest.take(_number(rest.take(2, "QE authentication data")), "QE authentication data")
    _announced(rest, _CERTIFICATES)
    return Quote(
        version=version,
        tee="sgx" if isinstance(body, EnclaveReport) else "tdx",
        signed=signed,
        body=body,
        signature=signature,
        key=key,
        qe_raw=qe_raw,
        qe=_enclave(qe_raw),
        qe_signature=qe_signature,
        qe_auth=qe_auth,
        certificates=rest.take(rest.left, "certificates"),
    )


class _Rest:
    """What of the bytes was not read yet."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at, self.end = raw, 0, len(raw)

    @property
    def left(self) -> int:
        return self.end - self.at

    def take(self, count: int, what: str) -> bytes:
        if count > self.left:
            raise Unverified(f"the quote is cut off in its {what}")
        self.at += count
        return self.raw[self.at - count : self.at]

    def end_after(self, count: int) -> None:
        """Check that the rest is what was announced; buffers that were larger end with zeros, and nothing else may."""
        if count > self.left:
            raise Unverified(f"the quote announces {count} bytes of signature data and has {self.left}")
        self.end = self.at + count
        if any(self.raw[self.end :]):
            raise Unverified("bytes after the end of the quote are not zero")


def _announced(rest: _Rest, kind: int) -> None:
    """Check that certification data reach to the end of the quote, at each of their two levels."""
    got = _number(rest.take(2, "certification data"))
    if got != kind:
        raise Unverified(f"certification data of type {got}; {kind} is expected here")
    size = _number(rest.take(4, "certification data"))
    if size != rest.left:
        raise Unverified(f"the quote announces {size} bytes of certification data and has {rest.left}")


def _body(rest: _Rest, version: int, tee: int) -> EnclaveReport | TdReport:
    if tee not in (_SGX, _TDX):
        raise Unverified(f"TEE type {tee:#x}; known are SGX, {_SGX:#x}, and TDX, {_TDX:#x}")
    kind, size = (1, ENCLAVE_BYTES) if tee == _SGX else (2, 584)
    if version == 5:
        kind, size = _number(rest.take(2, "body type")), _number(rest.take(4, "body size"))
        if _BODIES.get(kind) != (tee, size):
            raise Unverified(
                f"quote body of type {kind} and {size} bytes, which is not one of TEE type {tee:#x}"
            )
    raw = rest.take(size, "report")
    return _enclave(raw) if kind == 1 else _domain(raw)


def _enclave(raw: bytes) -> EnclaveReport:
    return EnclaveReport(
        misc_select=raw[16:20],
        attributes=raw[48:64],
        mr_enclave=raw[64:96],
        mr_signer=raw[128:160],
        isv_prodid=_number(raw[256:258]),
        isv_svn=_number(raw[258:260]),
        report_data=raw[320:384],
    )


def _domain(raw: bytes) -> TdReport:
    return TdReport(
        tee_tcb_svn=raw[0:16],
        mr_seam=raw[16:64],
        mr_signer_seam=raw[64:112],
        seam_attributes=raw[112:120],
        td_attributes=raw[120:128],
        mr_td=raw[136:184],
        mr_config_id=raw[184:232],
        mr_owner=raw[232:280],
        mr_owner_config=raw[280:328],
        rtmrs=(raw[328:376], raw[376:424], raw[424:472], raw[472:520]),
        report_data=raw[520:584],
    )


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "little")
