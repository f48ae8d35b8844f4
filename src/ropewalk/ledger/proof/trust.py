"""Trust files: which keys may seal blocks and bundles, which policy is expected, whose evidence is trusted.

    {"version":1, "block_signers":[{identity}…], "bundle_signers":[{identity}…], "policy_hash":"<hex>"|null,
     "roots":["<PEM>"…], "evidence":{pins}, "witnesses":["<vkey>"…], "revocations":[{"key","since","reason"}…]}

An identity is `{"identity_type","public_key"}`, as we write it, or the text of a did:key, as reports name it. One that
seals blocks may have `since` and `until`: its signatures outside that time are not trusted.

`evidence` is optional. Roots alone name who must have signed evidence; `evidence` also names the builder
and the measurement (`allowed` has its form). `witnesses` is optional: keys that
sign the heads of channels, in C2SP's text form, in addition to the block signers. `revocations` is optional: keys whose
signatures are not trusted since a date. `names` is optional: what reports call a did:key; it grants no trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ropewalk.errors import InvalidKey, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.note.key import Verifier
from ropewalk.kernel.schema.form import StrictForm
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.evidence.allowed import (
    EvidenceAllowList,
    both_spellings,
    parse_allow_list,
    parse_identities,
)
from ropewalk.ledger.keys.revocations import Limits, Revocation, parse_dated_identities, parse_revocations

if TYPE_CHECKING:
    from ropewalk.ledger.keys.history import KeyHistory

TRUST_BYTES_MAX = 4 << 20  # a thousand roots, or ten thousand revocations
_MEMBERS = {"block_signers", "bundle_signers", "policy_hash", "roots"}
_OPTIONAL = {"evidence", "witnesses", "revocations", "names"}
NAME_CHARS_MAX = 80
_FORM = StrictForm("trust file", "Make one with `ropewalk ledger trust --channel C -o TRUST.json`.")
_wrong = _FORM.wrong


@dataclass(frozen=True, slots=True)
class Trust:
    """What a verifier trusts. An empty list of signers trusts no key.

    `limits` are the validity times of signers, if given. `key_history` holds the channel's keys if they were read
    before; it is not part of the file.

    >>> parse_trust(Trust((), ()).to_bytes()) == Trust((), ())
    True
    """

    block_signers: tuple[PublicKey, ...]
    bundle_signers: tuple[PublicKey, ...]
    policy_hash: bytes | None = None
    roots: tuple[str, ...] = ()
    evidence: EvidenceAllowList | None = None
    witnesses: tuple[Verifier, ...] = ()
    limits: Limits = field(default_factory=dict)
    revocations: tuple[Revocation, ...] = ()
    key_history: KeyHistory | None = field(default=None, compare=False, repr=False)
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def judges_evidence(self) -> bool:
        """Whether the file has settings about evidence."""
        return bool(self.roots) or self.evidence is not None

    def to_bytes(self) -> bytes:
        """Return the bytes of the trust file."""
        value: dict[str, Any] = {
            "version": 1,
            "block_signers": [{**key.to_json(), **self._dates(key)} for key in self.block_signers],
            "bundle_signers": [key.to_json() for key in self.bundle_signers],
            "policy_hash": None if self.policy_hash is None else self.policy_hash.hex(),
            "roots": list(self.roots),
        }
        if self.evidence is not None:
            value["evidence"] = self.evidence.to_json()
        if self.witnesses:
            value["witnesses"] = [witness.to_text() for witness in self.witnesses]
        if self.revocations:
            value["revocations"] = [each.to_json() for each in self.revocations]
        if self.names:
            value["names"] = dict(self.names)
        return jcs.encode(value)

    def _dates(self, key: PublicKey) -> dict[str, str]:
        since_ns, until_ns = self.limits.get(key, (0, None))
        since = {"since": format_timestamp(since_ns)} if since_ns else {}
        return since if until_ns is None else {**since, "until": format_timestamp(until_ns)}

    def name_of(self, did: str) -> str:
        """Return the name that the file gives a key, then its did:key."""
        return f"{self.names[did]} ({did})" if did in self.names else did

    def _spellings(self, key: PublicKey) -> str:
        name = self.names.get(key.did())
        return f"{name}, {both_spellings(key)}" if name is not None else both_spellings(key)

    def explain(self) -> list[str]:
        """Return what is trusted, one line each."""
        lines = [
            " ".join(
                [
                    f"blocks sealed by {self._spellings(key)}",
                    *(f"{k} {v}" for k, v in self._dates(key).items()),
                ]
            )
            for key in self.block_signers
        ]
        lines += [f"bundles signed by {self._spellings(key)}" for key in self.bundle_signers]
        lines.append(
            f"policy {self.policy_hash.hex()}"
            if self.policy_hash is not None
            else "any policy (none is pinned)"
        )
        if self.roots:
            lines.append(f"evidence under {len(self.roots)} {'roots' if len(self.roots) > 1 else 'root'}")
        if self.evidence is not None:
            lines += self.evidence.explain()
        elif self.roots:
            lines.append("no builder and no measurement: the origin of evidence stays unchecked")
        if not self.judges_evidence:
            lines.append("no evidence: evidence stays unchecked")
        lines += [f"heads signed by witness {each.to_text()}" for each in self.witnesses]
        return [
            *lines,
            *(f"no signature of key {each.key.hex()} since {each.since}" for each in self.revocations),
        ]


def parse_trust(raw: bytes) -> Trust:
    """Parse a trust file; reject unknown members, because they might be meant to narrow the trust.

    >>> parse_trust(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: trust file: expected version, block_signers, bundle_signers, policy_hash and roots
    """
    expected = "version, block_signers, bundle_signers, policy_hash and roots"
    value = _FORM.members(jcs.parse(raw, bytes_max=TRUST_BYTES_MAX), _MEMBERS, expected, _OPTIONAL)
    policy, roots = hash_from_hex(value["policy_hash"]), value["roots"]
    if policy is None and value["policy_hash"] is not None:
        raise _wrong("policy_hash must be 64 lowercase hex digits or null")
    if not isinstance(roots, list) or not all(isinstance(root, str) and "BEGIN" in root for root in roots):
        raise _wrong("roots must be certificates in PEM")
    signers, limits = parse_dated_identities(value["block_signers"], "block_signers", _wrong)
    return Trust(
        signers,
        parse_identities(value["bundle_signers"], "bundle_signers", _wrong),
        policy,
        tuple(str(root) for root in roots),
        parse_allow_list(value["evidence"], _wrong) if "evidence" in value else None,
        _witnesses(value.get("witnesses", [])),
        limits,
        parse_revocations(value.get("revocations", []), _wrong),
        names=_names(value.get("names", {})),
    )


def parse_witnesses(raw: bytes) -> tuple[Verifier, ...]:
    """Parse a file of witness keys, one per line in C2SP form; empty lines and lines with `#` are ignored.

    >>> key = b"PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
    >>> [witness.name for witness in parse_witnesses(b"# a comment\\n" + key)]
    ['PeterNeumann']
    """
    try:
        lines = [line.strip() for line in raw.decode().splitlines()]
    except UnicodeDecodeError as error:
        raise InvalidKey("witness keys must be lines of UTF-8 text") from error
    found = tuple(Verifier.from_text(line) for line in lines if line and not line.startswith("#"))
    if not found:
        raise InvalidKey("no witness key found; expected one NAME+ID+KEY per line")
    return found


def _names(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _wrong("names must be an object from did:key to a name")
    for did, name in value.items():
        try:
            PublicKey.from_did(did)
        except RopewalkError as error:
            raise _wrong(f"names: {error.detail}") from error
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
            raise _wrong(f"names: a name must be 1 to {NAME_CHARS_MAX} printable characters")
    return value


def _witnesses(value: Any) -> tuple[Verifier, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _wrong("witnesses must be strings of the form NAME+ID+KEY")
    try:
        return tuple(Verifier.from_text(each) for each in value)
    except InvalidKey as error:
        raise _wrong(f"witnesses: {error.detail}") from error
