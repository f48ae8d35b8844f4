"""The witnesses of a channel: who is asked to cosign its heads, how many must, and what happens without them.

<channel>/witnesses.json   {"version":1,"host","witnesses":[{"url","vkey"}…],"threshold",
                            "unwitnessed_max":N|null}
<channel>/witnessed.note   the newest head with enough cosignatures

`unwitnessed_max` null is *fail open*: appends go on without witnesses. A number is *fail closed*: the writer refuses a
block once so many blocks are not under a head with enough cosignatures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ropewalk.errors import Invalid, InvalidKey, SigInvalid, Unavailable
from ropewalk.kernel import jcs
from ropewalk.kernel.note.key import Verifier
from ropewalk.kernel.note.note import NoteSignature, claimed_head, keep_signatures, open_head
from ropewalk.kernel.terminal_text import printable

WITNESSES_MAX: Final = 32
SETTINGS: Final = "witnesses.json"
NOTE: Final = "witnessed.note"
_MEMBERS: Final = {"version", "host", "witnesses", "threshold", "unwitnessed_max"}


@dataclass(frozen=True, slots=True)
class WitnessPolicy:
    """Witnesses by URL, how many of them must cosign, and how many blocks may wait for that."""

    host: str
    witnesses: tuple[tuple[str, Verifier], ...]
    threshold: int
    unwitnessed_max: int | None = None

    def __post_init__(self) -> None:
        keys, most = {vkey.key for _, vkey in self.witnesses}, len(distinct_witnesses(self.keys))
        if len(self.witnesses) > WITNESSES_MAX:
            raise Invalid(f"at most {WITNESSES_MAX} witnesses can be set, got {len(self.witnesses)}")
        if len(keys) < len(self.witnesses):
            raise Invalid("each witness must have its own key: one key under two names is one witness")
        if not all(vkey.type.cosigns for _, vkey in self.witnesses):
            raise InvalidKey(
                "a witness key must make cosignatures (type 4 or 6), as `witness init` prints it"
            )
        if not 1 <= self.threshold <= most:
            raise Invalid(
                f"threshold must be between 1 and {most} witnesses (two keys under one name are one), "
                f"got {self.threshold}"
            )
        if self.unwitnessed_max is not None and self.unwitnessed_max < 1:
            raise Invalid(f"unwitnessed_max must be 1 or more, got {self.unwitnessed_max}")

    @property
    def keys(self) -> tuple[Verifier, ...]:
        """The verifier keys of the witnesses."""
        return tuple(vkey for _, vkey in self.witnesses)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "version": 1,
            "host": self.host,
            "witnesses": [{"url": url, "vkey": vkey.to_text()} for url, vkey in self.witnesses],
            "threshold": self.threshold,
            "unwitnessed_max": self.unwitnessed_max,
        }

    def covered(self, note: bytes | None) -> int:
        """Return how many blocks are under the kept head; 0 unless enough of these witnesses have cosigned it.

        Its signatures were verified when it was kept; the host, the witnesses and the threshold may be others since.
        """
        if note is None:
            return 0
        head, lines = claimed_head(note)
        mine = {(key.name, key.key_id) for key in self.keys}
        names = {line.name for line in lines if (line.name, line.key_id) in mine}
        return head.size if len(names) >= self.threshold and head.origin.startswith(f"{self.host}/") else 0

    def check_backlog(self, height: int, witnessed: int) -> None:
        """Raise unless the block of that height may be sealed, with `witnessed` blocks under a cosigned head."""
        if self.unwitnessed_max is not None and height - witnessed >= self.unwitnessed_max:
            raise Unavailable(
                f"{height - witnessed} blocks have no {self.threshold} cosignatures yet, and the channel allows "
                f"{self.unwitnessed_max}",
                advice="Get them with `ropewalk ledger witness send --channel C`, then append again.",
                unwitnessed=height - witnessed,
            )


def parse_witness_policy(raw: bytes) -> WitnessPolicy:
    """Parse the settings; reject unknown members.

    >>> parse_witness_policy(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: witnesses: expected version, host, witnesses, threshold and unwitnessed_max
    """
    value: Any = jcs.parse(raw)
    if not isinstance(value, dict) or value.keys() != _MEMBERS or value["version"] != 1:
        raise Invalid("witnesses: expected version, host, witnesses, threshold and unwitnessed_max")
    named, numbers = value["witnesses"], (value["threshold"], value["unwitnessed_max"])
    if not isinstance(named, list) or not isinstance(value["host"], str):
        raise Invalid("witnesses: witnesses must be a list, host a string")
    if any(type(each) is not int and each is not None for each in numbers) or numbers[0] is None:
        raise Invalid("witnesses: threshold and unwitnessed_max must be numbers")
    pairs = []
    for each in named:
        if not isinstance(each, dict) or each.keys() != {"url", "vkey"} or not isinstance(each["url"], str):
            raise Invalid("witnesses: a witness must have url and vkey")
        pairs.append((each["url"], Verifier.from_text(str(each["vkey"]))))
    return WitnessPolicy(value["host"], tuple(pairs), *numbers)


def distinct_witnesses(keys: Iterable[Verifier]) -> tuple[Verifier, ...]:
    """Return the keys that count as witnesses: no name twice and no key twice; the first of each is kept."""
    found: list[Verifier] = []
    for vkey in keys:
        if all(vkey.name != each.name and vkey.key != each.key for each in found):
            found.append(vkey)
    return tuple(found)


def cosignatures(note: bytes, log: Verifier, witnesses: Iterable[Verifier]) -> tuple[NoteSignature, ...]:
    """Return the valid cosignatures of these witnesses on a head of the log, one for each name and key.

    Raise `SigInvalid` if the log has not signed it, or a line of a named key does not hold. The log's own key is never
    a witness.
    """
    named = [vkey for vkey in witnesses if vkey.key != log.key]
    _, opened = open_head(note, log, named)
    found = {vkey: line for vkey in named if (line := opened.signed_by(vkey)) is not None}
    return tuple(found[vkey] for vkey in distinct_witnesses(found))


def cosignature_line(note: bytes, answer: bytes, log: Verifier, witness: Verifier) -> bytes:
    """Return the line of this witness out of an answer to `add-checkpoint`; all its other lines are dropped.

    Raise `SigInvalid` if the witness's line is missing or does not hold.
    """
    joined = note + answer
    found = cosignatures(joined, log, [witness])
    if not found:
        raise SigInvalid(f'its answer has no cosignature of "{printable(witness.name, 200)}"')
    return keep_signatures(joined, [witness]).rpartition(b"\n\n")[2]


def signature_lines(note: bytes, keys: Sequence[Verifier]) -> tuple[str, ...]:
    """Return the signature lines of these keys as text."""
    names = {(key.name, key.key_id) for key in keys}
    lines = note.decode().removesuffix("\n").split("\n")[-len(claimed_head(note)[1]) :]
    return tuple(
        line
        for line, signature in zip(lines, claimed_head(note)[1], strict=True)
        if (signature.name, signature.key_id) in names
    )
