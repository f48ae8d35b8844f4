"""Trust in evidence: certificates, keys, and allowed values. Nothing is trusted by default.

The evidence.json of a channel is `{"version":1, "roots":["<PEM>"…], …}` with the members of `allowed`; a trust file
has the same in two members, `roots` and `evidence`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509

from ropewalk.kernel import jcs
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.schema.form import StrictForm
from ropewalk.ledger.evidence.allowed import EvidenceAllowList, parse_allow_list
from ropewalk.ledger.evidence.certificates import parse_pem
from ropewalk.ledger.evidence.crls import parse_crl
from ropewalk.ledger.evidence.snark import key_digest
from ropewalk.ledger.evidence.tee.intel_collateral import Collateral, parse_collateral

EVIDENCE_SETTINGS_BYTES_MAX = 16 << 20  # roots, revocation lists of a megabyte each, and collateral
_wrong = StrictForm(
    "evidence configuration", "Write it with `ropewalk ledger evidence set --channel C`."
).wrong


@dataclass(frozen=True, slots=True)
class EvidenceSettings:
    """The evidence.json of a channel: the roots as PEM texts, and the allowed values.

    >>> settings = EvidenceSettings((), EvidenceAllowList(builders=("urn:x",)))
    >>> parse_evidence_settings(settings.to_bytes()) == settings
    True
    """

    roots: tuple[str, ...] = ()
    pins: EvidenceAllowList = field(default_factory=EvidenceAllowList)

    def to_bytes(self) -> bytes:
        value: dict[str, Any] = {"version": 1, "roots": list(self.roots), **self.pins.to_json()}
        return jcs.encode(value)


@dataclass(frozen=True, slots=True)
class EvidenceTrust:
    """What a verifier of evidence trusts: roots, keys, builders and measurements. Empty trusts nothing.

    `pinned` is False if only roots are known: signatures and chains are checked, the origin of evidence is not.
    """

    roots: tuple[x509.Certificate, ...] = ()
    keys: tuple[PublicKey, ...] = ()
    builders: frozenset[str] = frozenset()
    pcrs: dict[int, frozenset[bytes]] = field(default_factory=dict)
    max_age_s: int | None = None
    pinned: bool = True
    measurements: dict[str, frozenset[bytes]] = field(default_factory=dict)
    sev_tcb: dict[str, int] = field(default_factory=dict)
    sgx_isv: dict[str, int] = field(default_factory=dict)
    tcb_statuses: frozenset[str] = frozenset({"UpToDate"})
    collateral: tuple[Collateral, ...] = ()
    crls: tuple[x509.CertificateRevocationList, ...] = ()
    snark_keys: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, roots: Iterable[str], pins: EvidenceAllowList | None) -> EvidenceTrust:
        """Make it from PEM texts and pins, as trust files and settings hold them."""
        known = pins or EvidenceAllowList()
        return cls(
            tuple(parse_pem(root) for root in roots),
            known.keys,
            frozenset(known.builders),
            {number: frozenset(map(bytes.fromhex, texts)) for number, texts in known.pcrs.items()},
            known.max_age_s,
            pins is not None,
            {name: frozenset(map(bytes.fromhex, texts)) for name, texts in known.measurements.items()},
            known.sev_tcb,
            known.sgx_isv,
            frozenset(known.tcb_statuses or ("UpToDate",)),
            tuple(parse_collateral(each) for each in known.collateral),
            tuple(parse_crl(text.encode()) for text in known.crls),
            {key_digest(text): text for text in known.snark_keys},
        )


def parse_evidence_settings(raw: bytes) -> EvidenceSettings:
    """Parse the settings file; reject unknown members and roots that are not certificates."""
    value = jcs.parse(raw, bytes_max=EVIDENCE_SETTINGS_BYTES_MAX)
    if not isinstance(value, dict) or value.get("version") != 1 or value["version"] is True:
        raise _wrong("an object of version 1 is expected, with roots and whose evidence is believed")
    roots = value.get("roots", [])
    if not isinstance(roots, list) or not all(isinstance(root, str) for root in roots):
        raise _wrong("roots are certificates as PEM texts")
    rest = {name: each for name, each in value.items() if name not in ("version", "roots")}
    settings = EvidenceSettings(tuple(str(root) for root in roots), parse_allow_list(rest, _wrong))
    EvidenceTrust.of(settings.roots, settings.pins)
    return settings


def parse_evidence_trust(raw: bytes) -> EvidenceTrust:
    """Return what a channel's evidence.json believes.

    >>> parse_evidence_trust(b'{"version":1,"builders":["urn:x"]}').builders
    frozenset({'urn:x'})
    """
    settings = parse_evidence_settings(raw)
    return EvidenceTrust.of(settings.roots, settings.pins)
