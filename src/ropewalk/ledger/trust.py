"""Trust files: which keys may seal blocks and bundles, which policy is expected, which roots evidence may end in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ropewalk.errors import Invalid, InvalidKey
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import PublicKey

__all__ = ["Trust", "parse_trust"]

_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Trust:
    """What a verifier believes before it looks. An empty list of signers trusts nobody.

    >>> parse_trust(Trust((), ()).to_bytes()) == Trust((), ())
    True
    """

    block_signers: tuple[PublicKey, ...]
    bundle_signers: tuple[PublicKey, ...]
    policy_hash: bytes | None = None
    roots: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """The file."""
        value: dict[str, Any] = {
            "version": 1,
            "block_signers": [key.to_json() for key in self.block_signers],
            "bundle_signers": [key.to_json() for key in self.bundle_signers],
            "policy_hash": None if self.policy_hash is None else self.policy_hash.hex(),
            "roots": list(self.roots),
        }
        return jcs.encode(value)

    def explain(self) -> list[str]:
        """What is trusted and why it matters, one line each."""
        lines = [f"blocks sealed by {key.did()}" for key in self.block_signers]
        lines += [f"bundles signed by {key.did()}" for key in self.bundle_signers]
        lines.append(
            f"policy {self.policy_hash.hex()}"
            if self.policy_hash is not None
            else "any policy (none is pinned)"
        )
        lines.append(
            f"{len(self.roots)} roots for evidence, which is judged where it is taken in, not in blocks and bundles"
            if self.roots
            else "no roots for evidence: certificate chains stay unchecked"
        )
        return lines


def parse_trust(raw: bytes) -> Trust:
    """The trust of a file; anything unknown in it is refused, for it might have been meant to narrow it.

    >>> parse_trust(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: trust file: expected version, block_signers, bundle_signers, policy_hash and roots
    """
    value = jcs.parse(raw)
    names = {"version", "block_signers", "bundle_signers", "policy_hash", "roots"}
    if not isinstance(value, dict) or value.keys() != names:
        raise _wrong("expected version, block_signers, bundle_signers, policy_hash and roots")
    if value["version"] != 1 or value["version"] is True:
        raise _wrong(f"version {value['version']!r:.20} is not known; 1 is")
    policy, roots = value["policy_hash"], value["roots"]
    if policy is not None and (not isinstance(policy, str) or _HEX.fullmatch(policy) is None):
        raise _wrong("policy_hash is 64 lower-case hex digits or null")
    if not isinstance(roots, list) or not all(isinstance(root, str) and "BEGIN" in root for root in roots):
        raise _wrong("roots are certificates as PEM texts")
    return Trust(
        _signers(value["block_signers"], "block_signers"),
        _signers(value["bundle_signers"], "bundle_signers"),
        None if policy is None else bytes.fromhex(policy),
        tuple(str(root) for root in roots),
    )


def _signers(value: Any, name: str) -> tuple[PublicKey, ...]:
    if not isinstance(value, list):
        raise _wrong(f"{name} is a list of identities")
    try:
        return tuple(PublicKey.from_json(identity) for identity in value)
    except InvalidKey as error:
        raise _wrong(f"{name}: {error.detail}") from error


def _wrong(what: str) -> Invalid:
    return Invalid(
        f"trust file: {what}", advice="Make one with `ropewalk ledger trust --channel C -o TRUST.json`."
    )
