"""Intel's signed statements about platforms and quoting enclaves: TCB info and QE identity, given as files.

Both are JSON with a signature over the exact bytes of one member. Nothing is fetched. Levels are listed from the best
down; the first one that a platform reaches gives its status.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509

from ropewalk.errors import Invalid, Unverified
from ropewalk.kernel import jcs
from ropewalk.ledger.envelope.fields import parse_timestamp
from ropewalk.ledger.evidence.allowed import CollateralTexts
from ropewalk.ledger.evidence.certificates import check_chain, extensions_of, parse_pem
from ropewalk.ledger.evidence.tee.intel_certificates import COMPONENTS, SGX_EXTENSION, Platform, check_p256
from ropewalk.ledger.evidence.tee.intel_quote import EnclaveReport, TdReport

STATEMENT_BYTES_MAX: Final = 1 << 18
LEVELS_MAX: Final = 256
_FORM: Final = {"tcbInfo": ("SGX", "TDX"), "enclaveIdentity": ("QE", "TD_QE")}
_VERSIONS: Final = {"tcbInfo": 3, "enclaveIdentity": 2}
_WHOLE: Final = re.compile(
    r'\s*\{\s*"(?P<name>tcbInfo|enclaveIdentity)"\s*:\s*(?P<body>\{.*\})\s*,\s*"signature"\s*:'
    r'\s*"(?P<signature>[0-9a-fA-F]{128})"\s*\}\s*',
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Statement:
    """A signed statement of Intel's: its bytes as they were signed, what they mean, and when they count."""

    name: str
    raw: bytes
    signature: bytes
    value: dict[str, Any]
    since_ns: int
    until_ns: int

    @property
    def kind(self) -> str:
        """Of what it speaks: SGX or TDX, QE or TD_QE."""
        return str(self.value["id"])


def parse_statement(text: str, name: str) -> Statement:
    """Parse TCB info or a QE identity from the text of its file; nothing is verified.

    >>> parse_statement("{}", "tcbInfo")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: this is no signed tcbInfo
    """
    if len(text) > STATEMENT_BYTES_MAX:
        raise Invalid(f"{name} of {len(text)} characters; at most {STATEMENT_BYTES_MAX}")
    found = _WHOLE.fullmatch(text)
    if found is None or found["name"] != name:
        raise Invalid(f"this is no signed {name}")
    raw = found["body"].encode()
    value = jcs.parse(raw)
    if not isinstance(value, dict) or value.get("id") not in _FORM[name]:
        raise Invalid(f"{name} is of none of the kinds {', '.join(_FORM[name])}")
    if value.get("version") != _VERSIONS[name]:
        raise Invalid(f"{name} of version {value.get('version')!r:.20}; known is {_VERSIONS[name]}")
    since, until = (parse_timestamp(str(value.get(each))) for each in ("issueDate", "nextUpdate"))
    _levels(value)
    if name == "tcbInfo":
        _hex(value, "fmspc"), _hex(value, "pceId")
    return Statement(name, raw, bytes.fromhex(found["signature"]), value, since, until)


@dataclass(frozen=True, slots=True)
class Collateral:
    """TCB info and QE identity for platforms of one kind, with the certificates of who signed them."""

    tcb: Statement
    qe: Statement
    chain: tuple[x509.Certificate, ...]

    def applies_to(self, tee: str, platform: Platform) -> bool:
        """Return whether it is about such hardware."""
        kinds = ("SGX", "QE") if tee == "sgx" else ("TDX", "TD_QE")
        same = (
            _hex(self.tcb.value, "fmspc") == platform.fmspc
            and _hex(self.tcb.value, "pceId") == platform.pce_id
        )
        return (self.tcb.kind, self.qe.kind) == kinds and same

    def is_current(self, at_ns: int) -> bool:
        """Return whether both statements count at a time."""
        return all(each.since_ns <= at_ns <= each.until_ns for each in (self.tcb, self.qe))

    def check_signed(self, root: x509.Certificate, at_ns: int) -> None:
        """Raise unless both statements are signed by who may, directly under the root of the quote itself."""
        if not self.chain or self.chain[1:] not in ((), (root,)):
            raise Unverified("collateral is signed by a certificate directly under the root of the quote")
        # A stolen key of a single platform must not be valid for all others.
        if SGX_EXTENSION in extensions_of(self.chain[0]):
            raise Unverified("collateral is signed by a platform, not by Intel")
        check_chain(self.chain[0], (), [root], at_ns)
        for each in (self.tcb, self.qe):
            check_p256(self.chain[0], each.raw, each.signature, f"signature over {each.name}")

    def statuses(
        self, platform: Platform, body: EnclaveReport | TdReport, qe: EnclaveReport
    ) -> dict[str, str]:
        """Return the statuses of the platform, of its quoting enclave and, for TDX, of its module, by their names."""
        found = {"platform": self._platform_status(platform, body), "quoting enclave": self._qe_status(qe)}
        if isinstance(body, TdReport):
            found |= self._module_status(body)
        return found

    def _platform_status(self, platform: Platform, body: EnclaveReport | TdReport) -> str:
        # A module with its own version replaces the first two levels; older modules are levels like others.
        first = 2 if isinstance(body, TdReport) and body.tee_tcb_svn[1] else 0
        for level in _levels(self.tcb.value):
            tcb = level["tcb"]
            if not _reaches(platform.components, _components(tcb, "sgxtcbcomponents")):
                continue
            if platform.pce_svn < _natural(tcb, "pcesvn"):
                continue
            if isinstance(body, TdReport) and not _reaches(
                body.tee_tcb_svn[first:], _components(tcb, "tdxtcbcomponents")[first:]
            ):
                continue
            return str(level["tcbStatus"])
        raise Unverified("the platform reaches none of the levels that TCB info knows")

    def _qe_status(self, qe: EnclaveReport) -> str:
        said = self.qe.value
        for name, got in (("miscselect", qe.misc_select), ("attributes", qe.attributes)):
            if _masked(got, _hex(said, f"{name}Mask")) != _hex(said, name):
                raise Unverified(f"{name} of the quoting enclave are not those of Intel's")
        if qe.mr_signer != _hex(said, "mrsigner") or qe.isv_prodid != _natural(said, "isvprodid"):
            raise Unverified("the quoting enclave is not one that Intel has signed")
        return _status_at(_levels(said), qe.isv_svn, "quoting enclave")

    def _module_status(self, body: TdReport) -> dict[str, str]:
        said, version = self.tcb.value, body.tee_tcb_svn[1]
        identity = said.get("tdxModule") if version == 0 else _identity(said, version)
        if not isinstance(identity, dict):
            raise Unverified(f"TCB info knows no TDX module of version {version}")
        masked = _masked(body.seam_attributes, _hex(identity, "attributesMask"))
        if body.mr_signer_seam != _hex(identity, "mrsigner") or masked != _hex(identity, "attributes"):
            raise Unverified("the TDX module is not one that Intel has signed")
        if version == 0:
            return {}
        return {"TDX module": _status_at(_levels(identity), body.tee_tcb_svn[0], "TDX module")}


def parse_collateral(texts: CollateralTexts) -> Collateral:
    """Parse collateral from the texts of its files."""
    tcb, qe = (
        parse_statement(texts.tcb_info, "tcbInfo"),
        parse_statement(texts.qe_identity, "enclaveIdentity"),
    )
    return Collateral(tcb, qe, tuple(parse_pem(text) for text in texts.chain))


def _identity(said: dict[str, Any], version: int) -> Any:
    listed = said.get("tdxModuleIdentities")
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and str(each.get("id")).upper() == f"TDX_{version:02X}":
            return each
    return None


def _levels(value: dict[str, Any]) -> list[dict[str, Any]]:
    levels = value.get("tcbLevels")
    good = isinstance(levels, list) and 0 < len(levels) <= LEVELS_MAX
    if not good or not all(
        isinstance(each, dict)
        and isinstance(each.get("tcb"), dict)
        and isinstance(each.get("tcbStatus"), str)
        for each in levels or ()
    ):
        raise Invalid("collateral has levels, each with tcb and tcbStatus")
    return list(levels or ())


def _status_at(levels: Sequence[dict[str, Any]], svn: int, what: str) -> str:
    for level in levels:
        if _natural(level["tcb"], "isvsvn") <= svn:
            return str(level["tcbStatus"])
    raise Unverified(f"level {svn} of the {what} is below all that collateral knows")


def _components(tcb: dict[str, Any], name: str) -> bytes:
    listed = tcb.get(name)
    if not isinstance(listed, list) or len(listed) != COMPONENTS:
        raise Invalid(f"TCB info: {name} are {COMPONENTS} components")
    return bytes(_natural(each, "svn", 255) for each in listed)


def _reaches(got: bytes, asked: bytes) -> bool:
    return all(have >= least for have, least in zip(got, asked, strict=True))


def _masked(raw: bytes, mask: bytes) -> bytes:
    if len(raw) != len(mask):
        raise Invalid(f"collateral: a mask has {len(mask)} bytes, not {len(raw)}")
    return bytes(one & other for one, other in zip(raw, mask, strict=True))


def _natural(value: Any, name: str, most: int = 0xFFFF) -> int:
    number = value.get(name) if isinstance(value, dict) else None
    if type(number) is not int or not 0 <= number <= most:
        raise Invalid(f"collateral: {name} is a number from 0 to {most}")
    return number


def _hex(value: dict[str, Any], name: str) -> bytes:
    try:
        return bytes.fromhex(str(value.get(name)))
    except ValueError as error:
        raise Invalid(f"collateral: {name} is no hex") from error
