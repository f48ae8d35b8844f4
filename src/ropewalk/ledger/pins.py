"""Which evidence is believed, beyond the root it ends in: signers, builders, measurements, levels and how old.

    {"keys":[{identity}…], "builders":["<id>"…], "pcrs":{"0":["<hex>"…]}, "max_age_s":n|null,
     "measurements":{"sev.measurement":["<hex>"…]}, "sev_tcb":{"snp":n}}

Trust files and the evidence.json of a channel hold it in this form. Nothing named is nothing believed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ropewalk.errors import Invalid, InvalidKey
from ropewalk.kernel.keys import PublicKey

__all__ = ["MEASUREMENTS", "SEV_TCB", "EvidencePins", "both_spellings", "parse_identities", "parse_pins"]

MEASUREMENTS: Final = {"sev.measurement": 48, "sev.host_data": 32, "sev.id_key_digest": 48}
"""The registers that can be pinned, by the kind of hardware and their own name, with how many bytes they have."""

SEV_TCB: Final = ("fmc", "bootloader", "tee", "snp", "microcode")
"""The parts of an AMD platform whose security levels can be asked for."""

_PCR: Final = re.compile(r"[0-9]|[12][0-9]|3[01]")
_HEX: Final = re.compile(r"(?:[0-9a-f]{2})+")
_MEMBERS: Final = {"keys", "builders", "pcrs", "max_age_s", "measurements", "sev_tcb"}


@dataclass(frozen=True, slots=True)
class EvidencePins:
    """Which evidence is believed, beyond the root it ends in: its signers, builders and measurements, and how old.

    >>> parse_pins({"builders": ["urn:x"]}, Invalid).to_json()
    {'keys': [], 'builders': ['urn:x'], 'pcrs': {}, 'max_age_s': None}
    """

    keys: tuple[PublicKey, ...] = ()
    builders: tuple[str, ...] = ()
    pcrs: dict[int, tuple[str, ...]] = field(default_factory=dict)
    max_age_s: int | None = None
    measurements: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sev_tcb: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As files hold it. What came later is written only where it says something, so older readers go on."""
        value: dict[str, Any] = {
            "keys": [key.to_json() for key in self.keys],
            "builders": list(self.builders),
            "pcrs": {str(number): list(texts) for number, texts in self.pcrs.items()},
            "max_age_s": self.max_age_s,
        }
        if self.measurements:
            value["measurements"] = {name: list(texts) for name, texts in self.measurements.items()}
        if self.sev_tcb:
            value["sev_tcb"] = dict(self.sev_tcb)
        return value

    def explain(self) -> list[str]:
        """What is believed, one line each."""
        lines = [f"provenance signed by {both_spellings(key)}" for key in self.keys]
        lines += [f"builder {builder}" for builder in self.builders]
        lines += [f"PCR{number} {text[:16]}…" for number, texts in self.pcrs.items() for text in texts]
        lines += [f"{name} {text[:16]}…" for name, texts in self.measurements.items() for text in texts]
        lines += [f"AMD {name} of level {least} or above" for name, least in self.sev_tcb.items()]
        return [*lines, f"evidence at most {self.max_age_s} s old"] if self.max_age_s is not None else lines


def parse_pins(value: Any, wrong: Callable[[str], Invalid]) -> EvidencePins:
    """The pins in a JSON value; `wrong` makes the error of the file they stand in."""
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
    return EvidencePins(
        parse_identities(keys, "keys", wrong),
        tuple(builders),
        _pcrs(pcrs, wrong),
        age,
        _measurements(value.get("measurements", {}), wrong),
        _levels(value.get("sev_tcb", {}), wrong),
    )


def parse_identities(value: Any, name: str, wrong: Callable[[str], Invalid]) -> tuple[PublicKey, ...]:
    """Identities in a JSON value, each an object or the text of a did:key."""
    if not isinstance(value, list):
        raise wrong(f"{name} is a list of identities")
    try:
        return tuple(
            PublicKey.from_did(each) if isinstance(each, str) else PublicKey.from_json(each) for each in value
        )
    except InvalidKey as error:
        raise wrong(f"{name}: {error.detail}") from error


def both_spellings(key: PublicKey) -> str:
    """The key as reports name it and as files hold it, so that a person can compare the two."""
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


def _levels(value: Any, wrong: Callable[[str], Invalid]) -> dict[str, int]:
    if not isinstance(value, dict) or value.keys() - set(SEV_TCB):
        raise wrong(f"sev_tcb maps {', '.join(SEV_TCB)} to levels")
    if not all(type(least) is int and 0 <= least <= 255 for least in value.values()):
        raise wrong("levels in sev_tcb are numbers from 0 to 255")
    return dict(value)
