"""Which evidence is believed, beyond the root it ends in: signers, builders, measurements, levels and how old.

    {"keys":[{identity}…], "builders":["<id>"…], "pcrs":{"0":["<hex>"…]}, "max_age_s":n|null,
     "measurements":{"sev.measurement":["<hex>"…]}, "sev_tcb":{"snp":n}, "sgx_isv":{"prodid":n, "svn":n},
     "tcb_statuses":["UpToDate"…], "collateral":[{"tcb_info":"<JSON>", "qe_identity":"<JSON>", "chain":["<PEM>"…]}…],
     "crls":["<PEM>"…], "snark_keys":["<verification key of snarkjs, canonical JSON>"…]}

Trust files and the evidence.json of a channel hold it in this form. Nothing named is nothing believed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ropewalk.errors import Invalid, InvalidKey
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.evidence.snark import key_digest, key_text
from ropewalk.ledger.json_form import members_of

MEASUREMENTS: Final = {
    "sev.measurement": 48,
    "sev.host_data": 32,
    "sev.id_key_digest": 48,
    "sgx.mrenclave": 32,
    "sgx.mrsigner": 32,
    "tdx.mrtd": 48,
    "tdx.rtmr0": 48,
    "tdx.rtmr1": 48,
    "tdx.rtmr2": 48,
    "tdx.rtmr3": 48,
    "tdx.mrconfigid": 48,
    "tdx.mrowner": 48,
    "tdx.mrownerconfig": 48,
    "tdx.mrseam": 48,
}
"""The registers that can be pinned, by the kind of hardware and their own name, with how many bytes they have."""

SEV_TCB: Final = ("fmc", "bootloader", "tee", "snp", "microcode")
"""The parts of an AMD platform whose security levels can be asked for."""

SGX_ISV: Final = ("prodid", "svn")
"""Which product of its signer an enclave must be, and the least level it must have."""

TCB_STATUSES: Final = (
    "UpToDate",
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
)
"""TCB statuses of Intel that a verifier may accept; revoked ones are not among them."""

_PCR: Final = re.compile(r"[0-9]|[12][0-9]|3[01]")
_HEX: Final = re.compile(r"(?:[0-9a-f]{2})+")
_MEMBERS: Final = {
    *("keys", "builders", "pcrs", "max_age_s", "measurements"),
    *("sev_tcb", "sgx_isv", "tcb_statuses", "collateral", "crls", "snark_keys"),
}


@dataclass(frozen=True, slots=True)
class CollateralTexts:
    """Files of Intel's about platforms of one kind: TCB info, QE identity, and the certificates of who signed them."""

    tcb_info: str
    qe_identity: str
    chain: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return what files and reports hold."""
        return members_of(self)


@dataclass(frozen=True, slots=True)
class EvidenceAllowList:
    """Which evidence is believed, beyond the root it ends in: its signers, builders and measurements, and how old.

    >>> parse_allow_list({"builders": ["urn:x"]}, Invalid).to_json()
    {'keys': [], 'builders': ['urn:x'], 'pcrs': {}, 'max_age_s': None}
    """

    keys: tuple[PublicKey, ...] = ()
    builders: tuple[str, ...] = ()
    pcrs: dict[int, tuple[str, ...]] = field(default_factory=dict)
    max_age_s: int | None = None
    measurements: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sev_tcb: dict[str, int] = field(default_factory=dict)
    sgx_isv: dict[str, int] = field(default_factory=dict)
    tcb_statuses: tuple[str, ...] = ()
    collateral: tuple[CollateralTexts, ...] = ()
    crls: tuple[str, ...] = ()
    snark_keys: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in files. Newer members are written only if set, so older readers keep working."""
        value: dict[str, Any] = {
            "keys": [key.to_json() for key in self.keys],
            "builders": list(self.builders),
            "pcrs": {str(number): list(texts) for number, texts in self.pcrs.items()},
            "max_age_s": self.max_age_s,
        }
        later: dict[str, Any] = {
            "measurements": {name: list(texts) for name, texts in self.measurements.items()},
            "sev_tcb": dict(self.sev_tcb),
            "sgx_isv": dict(self.sgx_isv),
            "tcb_statuses": list(self.tcb_statuses),
            "collateral": [each.to_json() for each in self.collateral],
            "crls": list(self.crls),
            "snark_keys": list(self.snark_keys),
        }
        return value | {name: each for name, each in later.items() if each}

    def explain(self) -> list[str]:
        """Return what is believed, one line each."""
        lines = [f"provenance signed by {both_spellings(key)}" for key in self.keys]
        lines += [f"builder {builder}" for builder in self.builders]
        lines += [f"PCR{number} {text[:16]}…" for number, texts in self.pcrs.items() for text in texts]
        lines += [f"{name} {text[:16]}…" for name, texts in self.measurements.items() for text in texts]
        lines += [f"AMD {name} of level {least} or above" for name, least in self.sev_tcb.items()]
        lines += [
            f"SGX {name} {'of level ' * (name == 'svn')}{number}" for name, number in self.sgx_isv.items()
        ]
        lines += [f"Intel platforms that are {status}" for status in self.tcb_statuses]
        if self.collateral:
            lines.append(f"Intel's collateral, {len(self.collateral)} given")
        if self.crls:
            lines.append(f"nothing that {len(self.crls)} given revocation lists revoke")
        lines += [f"proofs under verification key {key_digest(text)[:16]}…" for text in self.snark_keys]
        return [*lines, f"evidence at most {self.max_age_s} s old"] if self.max_age_s is not None else lines


def parse_allow_list(value: Any, wrong: Callable[[str], Invalid]) -> EvidenceAllowList:
    """Return the pins in a JSON value; `wrong` makes the error of the file they stand in."""
    if not isinstance(value, dict) or value.keys() - _MEMBERS:
        raise wrong(f"evidence has {', '.join(sorted(_MEMBERS))}")
    keys, builders, pcrs = value.get("keys", []), value.get("builders", []), value.get("pcrs", {})
    age = value.get("max_age_s")
    if not isinstance(keys, list) or not isinstance(builders, list) or not isinstance(pcrs, dict):
        raise wrong("keys and builders are lists, pcrs is an object")
    if not all(isinstance(each, str) and each for each in builders):
        raise wrong("builders are texts")
    if age is not None and (type(age) is not int or age < 1):
        raise wrong("max_age_s is a number of seconds or null")
    return EvidenceAllowList(
        parse_identities(keys, "keys", wrong),
        tuple(builders),
        _pcrs(pcrs, wrong),
        age,
        _measurements(value.get("measurements", {}), wrong),
        _numbers(value.get("sev_tcb", {}), "sev_tcb", SEV_TCB, 0xFF, wrong),
        _numbers(value.get("sgx_isv", {}), "sgx_isv", SGX_ISV, 0xFFFF, wrong),
        _statuses(value.get("tcb_statuses", []), wrong),
        _collateral(value.get("collateral", []), wrong),
        _texts(value.get("crls", []), "crls are revocation lists as PEM texts", wrong),
        _snark_keys(value.get("snark_keys", []), wrong),
    )


def parse_collateral_texts(value: Any, wrong: Callable[[str], Invalid]) -> CollateralTexts:
    """Parse collateral in a JSON value, as trust files and reports hold it."""
    if not isinstance(value, dict) or value.keys() != {"tcb_info", "qe_identity", "chain"}:
        raise wrong("collateral has tcb_info, qe_identity and chain")
    tcb_info, qe_identity = value["tcb_info"], value["qe_identity"]
    if not isinstance(tcb_info, str) or not isinstance(qe_identity, str):
        raise wrong("tcb_info and qe_identity of collateral are texts")
    chain = _texts(value["chain"], "the chain of collateral are certificates as PEM texts", wrong)
    return CollateralTexts(tcb_info, qe_identity, chain)


def parse_identities(value: Any, name: str, wrong: Callable[[str], Invalid]) -> tuple[PublicKey, ...]:
    """Parse identities in a JSON value, each an object or the text of a did:key."""
    if not isinstance(value, list):
        raise wrong(f"{name} is a list of identities")
    try:
        return tuple(
            PublicKey.from_did(each) if isinstance(each, str) else PublicKey.from_json(each) for each in value
        )
    except InvalidKey as error:
        raise wrong(f"{name}: {error.detail}") from error


def both_spellings(key: PublicKey) -> str:
    """Return the key as reports name it and as files hold it, so that a person can compare the two."""
    return f"{key.did()} ({key.alg} {key.raw.hex()})"


def _pcrs(value: dict[str, Any], wrong: Callable[[str], Invalid]) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for number, texts in value.items():
        if _PCR.fullmatch(number) is None or not isinstance(texts, list):
            raise wrong("pcrs maps numbers from 0 to 31 to lists of hex digests")
        if not all(isinstance(text, str) and _HEX.fullmatch(text) for text in texts):
            raise wrong("pcrs are lower-case hex")
        found[int(number)] = tuple(str(text) for text in texts)
    return found


def _measurements(value: Any, wrong: Callable[[str], Invalid]) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict) or value.keys() - MEASUREMENTS.keys():
        raise wrong(f"measurements maps {', '.join(MEASUREMENTS)} to lists of hex digests")
    found: dict[str, tuple[str, ...]] = {}
    for name, texts in value.items():
        digits = 2 * MEASUREMENTS[name]
        if not isinstance(texts, list) or not all(
            isinstance(text, str) and len(text) == digits and _HEX.fullmatch(text) for text in texts
        ):
            raise wrong(f"{name} is a list of texts of {digits} lower-case hex digits")
        found[name] = tuple(str(text) for text in texts)
    return found


def _numbers(
    value: Any, name: str, known: tuple[str, ...], most: int, wrong: Callable[[str], Invalid]
) -> dict[str, int]:
    if not isinstance(value, dict) or value.keys() - set(known):
        raise wrong(f"{name} maps {', '.join(known)} to numbers")
    if not all(type(number) is int and 0 <= number <= most for number in value.values()):
        raise wrong(f"numbers in {name} are from 0 to {most}")
    return dict(value)


def _statuses(value: Any, wrong: Callable[[str], Invalid]) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(each in TCB_STATUSES for each in value):
        raise wrong(f"tcb_statuses are some of {', '.join(TCB_STATUSES)}")
    return tuple(value)


def _collateral(value: Any, wrong: Callable[[str], Invalid]) -> tuple[CollateralTexts, ...]:
    if not isinstance(value, list):
        raise wrong("collateral is a list")
    return tuple(parse_collateral_texts(each, wrong) for each in value)


def _snark_keys(value: Any, wrong: Callable[[str], Invalid]) -> tuple[str, ...]:
    try:
        return tuple(
            key_text(text.encode()) for text in _texts(value, "snark_keys must be JSON texts", wrong)
        )
    except Invalid as error:
        raise wrong(f"snark_keys: {error.detail}") from error


def _texts(value: Any, what: str, wrong: Callable[[str], Invalid]) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise wrong(what)
    return tuple(value)
