"""Decisions of a witness: whether a head extends the largest one it has seen of that log (C2SP tlog-witness).

The functions are pure. The caller must store `WatchedLog` durably *before* it returns the cosignature; then no crash
can make a witness sign two heads that disagree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from ropewalk.errors import (
    Conflict,
    Damaged,
    Forked,
    InvalidDigest,
    InvalidKey,
    InvalidNote,
    InvalidProof,
    ProofRefused,
    RopewalkError,
    SigInvalid,
    TooLarge,
    Unavailable,
)
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.multiformats import base64_decode, base64_encode
from ropewalk.kernel.note.key import SignatureType, Verifier
from ropewalk.kernel.note.note import SignedHead, claimed_head, keep_signatures, open_note
from ropewalk.kernel.terminal_text import printable
from ropewalk.ledger.transparency.head_check import check_consistency
from ropewalk.ledger.transparency.head_fork import HeadFork
from ropewalk.ledger.transparency.head_signers import SHOWN_MAX

REQUEST_BYTES_MAX: Final = 1 << 17  # a head with sixteen signatures of the largest kind, and its proof
_PATH_MAX: Final = 63  # tlog-witness
_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})")
_MEMBERS: Final = {"version", "origin", "keys", "head", "time_s"}


@dataclass(frozen=True, slots=True)
class WitnessRequest:
    """A head to cosign; with the size it extends and the proof, if it came as an `add-checkpoint`."""

    note: bytes
    old: int | None = None
    path: tuple[bytes, ...] = ()

    def to_bytes(self) -> bytes:
        """Return the body of C2SP's `add-checkpoint`.

        >>> WitnessRequest(b"note", 7, (bytes(32),)).to_bytes().decode().splitlines()[0]
        'old 7'
        """
        lines = [f"old {self.old or 0}", *(base64_encode(each) for each in self.path), "", ""]
        return "\n".join(lines).encode() + self.note


def parse_request(raw: bytes) -> WitnessRequest:
    """Parse a checkpoint, or the body of an `add-checkpoint`; only the form is checked.

    >>> parse_request(b"old 7\\n\\n")
    Traceback (most recent call last):
    ropewalk.errors.InvalidNote: note: the last line does not end
    """
    if len(raw) > REQUEST_BYTES_MAX:
        raise TooLarge(f"checkpoint of {len(raw)} bytes", size=len(raw), limit=REQUEST_BYTES_MAX)
    front, border, note = raw.partition(b"\n\n")
    first, *hashes = front.decode("utf-8", "replace").split("\n")
    asked = _OLD.fullmatch(first)
    if asked is None:
        claimed_head(raw)
        return WitnessRequest(raw)
    if not border or len(hashes) > _PATH_MAX:
        raise InvalidProof("request: a proof must be at most 63 hashes, one per line, ended by an empty line")
    try:
        path = tuple(base64_decode(line) for line in hashes)
    except InvalidDigest as error:
        raise InvalidProof(f"request: {error.detail}") from error
    if any(len(each) != merkle.HASH_BYTES for each in path):
        raise InvalidProof("request: a hash of the proof must have 32 bytes")
    head, _ = claimed_head(note)
    old = int(asked[1])
    if old > head.size:
        raise InvalidProof(f"request: a head of {head.size} does not extend one of {old}", size=head.size)
    return WitnessRequest(note, old, path)


@dataclass(frozen=True, slots=True)
class WatchedLog:
    """A log as its witness knows it: its keys, the largest head cosigned, and the time of that."""

    origin: str
    keys: tuple[Verifier, ...]
    note: bytes | None = None
    time_s: int = 0

    @property
    def head(self) -> SignedHead:
        """The largest head that was cosigned; the empty log at first."""
        if self.note is None:
            return SignedHead(self.origin, 0, merkle.SHA256.empty)
        return claimed_head(self.note)[0]

    def to_bytes(self) -> bytes:
        """Return the bytes of its file."""
        value: dict[str, Any] = {
            "version": 1,
            "origin": self.origin,
            "keys": [key.to_text() for key in self.keys],
            "head": None if self.note is None else self.note.decode(),
            "time_s": self.time_s,
        }
        return jcs.encode(value)


def parse_watched(raw: bytes) -> WatchedLog:
    """Parse the file that `to_bytes` wrote. Its head is signed, so a change is detected; raise `Damaged` on any fault.

    >>> parse_watched(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Damaged: the witness's record is not what was written: members
    """
    try:
        value: Any = jcs.parse_canonical(raw)
        if (
            not isinstance(value, dict)
            or value.keys() != _MEMBERS
            or value["version"] != 1
            or value["version"] is True
        ):
            raise InvalidNote("members")
        if not isinstance(value["keys"], list) or not value["keys"] or not isinstance(value["origin"], str):
            raise InvalidNote("keys")
        keys = tuple(Verifier.from_text(str(each)) for each in value["keys"])
        if type(value["time_s"]) is not int or value["time_s"] < 0:
            raise InvalidNote("time_s")
        note = None if value["head"] is None else str(value["head"]).encode()
        log = WatchedLog(value["origin"], keys, note, value["time_s"])
        if log.note is not None:
            _open(log, log.note)
    except RopewalkError as error:
        raise Damaged(
            f"the witness's record is not what was written: {error.detail}",
            reason="state",
            advice="Nothing is signed without it. Restore it only from a copy as new as the last cosignature; "
            "else begin again under a new key.",
        ) from error
    return log


def watch_log(log: WatchedLog | None, key: Verifier, origin: str | None = None) -> WatchedLog:
    """Return the log with one more key, or a new log.

    >>> watch_log(None, Verifier.from_text("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")).origin
    'PeterNeumann'
    """
    if key.type != SignatureType.ED25519:
        raise InvalidKey(
            f'"{key.name}" makes cosignatures: it is the key of a witness, not of a log',
            advice="Name the log's own key, as `ropewalk ledger tiles` prints it.",
        )
    if log is None:
        name = key.name if origin is None else origin
        return WatchedLog(SignedHead(name, 0, merkle.SHA256.empty).origin, (key,))
    if key in log.keys:
        return log
    if any((each.name, each.key_id) == (key.name, key.key_id) for each in log.keys):
        raise InvalidKey(
            f'"{key.name}" already has another key with the id {key.key_id.hex()}', name=key.name
        )
    return replace(log, keys=(*log.keys, key))


def accept_head(
    log: WatchedLog, request: WitnessRequest, now_s: int, tree: merkle.Nodes | None = None
) -> WatchedLog | HeadFork:
    """Return the log with this head as the largest one, to be stored before it is cosigned; or both sides of a fork.

    A head that is smaller, extends another size, or is not proven to extend the known head is rejected. The same head
    may be cosigned again.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> from ropewalk.ledger.proof.proof import head_signer, signed_head
    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> log = watch_log(None, head_signer("log.example", "ops", key).verifier)
    >>> log = accept_head(log, parse_request(signed_head("log.example", "ops", 2, bytes(32), key)), 1700000000)
    >>> log.head.size, log.time_s
    (2, 1700000000)
    """
    new = _open(log, request.note)
    note, old = keep_signatures(request.note, log.keys), log.head
    if log.note is not None:  # before any other error: evidence must not be lost to a wrong clock
        fork = _find_fork(log.note, note, request, tree)
        if fork is not None:
            return fork
    if now_s < log.time_s:
        raise Unavailable(
            f"the clock is at {now_s}, but this witness has already signed at {log.time_s}",
            advice="Set the clock. A witness that signed in the future waits for it, or begins again under a new key.",
            time_s=log.time_s,
        )
    if request.old is not None and request.old != old.size:
        raise Conflict(
            f"the request extends {request.old}, but this witness has cosigned {old.size}",
            size=old.size,
            advice=f"Make the proof from {old.size}: `ropewalk ledger head --note --old {old.size}`.",
        )
    if new.size < old.size:
        raise Conflict(
            f"a head of {new.size}, after this witness has cosigned one of {old.size}",
            size=old.size,
            advice="Give it the newest checkpoint; an older one is never cosigned again.",
        )
    if tree is not None:
        check_consistency(old, new, tree)
    elif new.size > old.size and old.size and request.old is None:
        raise InvalidProof(
            f"no proof shows that the head of {new.size} extends the one of {old.size} that was cosigned",
            advice="Name the published folder with --tiles, or give a request: "
            f"`ropewalk ledger head --note --old {old.size}`.",
        )
    else:
        merkle.verify_consistency(old.size, new.size, request.path, old.root, new.root, merkle.SHA256)
    return replace(log, note=note, time_s=now_s)


def _open(log: WatchedLog, note: bytes) -> SignedHead:
    """Return the head of a note, if it is of this log and signed by one of its keys."""
    opened = open_note(note, log.keys)
    head = SignedHead.from_text(opened.text)
    if head.origin != log.origin:
        raise SigInvalid(
            f'head of "{printable(head.origin, SHOWN_MAX)}", where "{log.origin}" was expected',
            origin=head.origin,
        )
    return head


def _find_fork(
    seen: bytes, note: bytes, request: WitnessRequest, tree: merkle.Nodes | None
) -> HeadFork | None:
    """Return both sides if the two heads are proven to disagree, or a proof of agreement fails."""
    ours, theirs = claimed_head(seen)[0], claimed_head(note)[0]
    (first, one), (second, other) = ((ours, seen), (theirs, note))
    if theirs.size < ours.size:
        (first, one), (second, other) = ((theirs, note), (ours, seen))
    if first.size == second.size:
        return None if first.root == second.root else HeadFork(one, other, second.root)
    if tree is not None:
        try:
            check_consistency(first, second, tree)
        except Forked:
            return HeadFork(one, other, tree.root(first.size), tree.consistency(first.size, second.size))
        except RopewalkError:
            return None  # about a smaller head nothing more is known; a larger one is checked again
        return None
    if request.old != first.size or first is not ours:
        return None
    try:
        merkle.verify_consistency(
            first.size, second.size, request.path, first.root, second.root, merkle.SHA256
        )
    except ProofRefused as error:
        return _proven(HeadFork(one, other, bytes.fromhex(error.fields["got"]), request.path), error)
    return None


def _proven(fork: HeadFork, error: ProofRefused) -> HeadFork:
    """Return a fork with its path if the path proves it: it leads to the newer root from another older one."""
    if error.fields["step"] == "old_root":
        try:
            fork.check()
        except RopewalkError:
            return HeadFork(fork.first, fork.second)
        return fork
    return HeadFork(fork.first, fork.second)
