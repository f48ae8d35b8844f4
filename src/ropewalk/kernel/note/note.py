"""Signed notes and signed heads, as C2SP writes them: signed-note, tlog-checkpoint, tlog-cosignature.

A note is text, an empty line, and signature lines `— <key name> <base64(key id ‖ signature)>`. Name and key id
together say which key signed; a line of a key we do not know is kept and believed nothing. A signed head is a note
whose text is `origin`, `size` and `root` of a log: the one thing that vouches for a whole log in any engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ropewalk.errors import InvalidDigest, InvalidKey, InvalidNote, SigInvalid, TooLarge
from ropewalk.kernel.multiformats import base64_decode, base64_encode
from ropewalk.kernel.note.key import KEY_ID_BYTES, is_key_name
from ropewalk.kernel.note.key import SignatureType as SignatureType
from ropewalk.kernel.note.key import Signer as Signer
from ropewalk.kernel.note.key import Verifier as Verifier
from ropewalk.kernel.proofs import HASH_BYTES, SIZE_MAX

NOTE_BYTES_MAX = 1_000_000  # far above any head; a note is read whole before anything in it is believed
SIGNATURES_MAX = 100  # C2SP asks for at least 16; each may cost a verification
SIGNATURE_LINE_MAX = 16_384  # characters; post-quantum signatures take nearly 7,000

_DASH = "\u2014 "
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class NoteSignature:
    """One signature line: who is said to have signed, and for a cosignature that was verified, when."""

    name: str
    key_id: bytes
    raw: bytes
    time_s: int | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """A note that at least one known key signed. Lines of unknown keys are kept, and mean nothing.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> signer = Signer("example", SigningKey.generate("ed25519", bytes(32)))
    >>> open_note(sign_note("hello\\n", signer), [signer.verifier]).text
    'hello\\n'
    """

    text: str
    verified: tuple[NoteSignature, ...]
    unverified: tuple[NoteSignature, ...]

    def signed_by(self, verifier: Verifier) -> NoteSignature | None:
        """Return the verified signature of this key, if it signed."""
        who = (verifier.name, verifier.key_id)
        return next((each for each in self.verified if (each.name, each.key_id) == who), None)


def sign_note(text: str, *signers: Signer) -> bytes:
    """Return the text with one signature line for each signer.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> signer = Signer("example", SigningKey.generate("ed25519", bytes(32)))
    >>> sign_note("hello\\n", signer).decode().splitlines()[2][:12]
    '— example 1U'
    """
    _check_text(text)
    if not signers:
        raise InvalidNote("a note without a signature is only text")
    return _join_note(
        text, [NoteSignature(each.name, each.verifier.key_id, each.sign(text)) for each in signers]
    )


def open_note(raw: bytes, verifiers: Iterable[Verifier]) -> Note:
    """Return the note, if a known key signed it and no known key's signature is bad.

    Every line of a known key is verified, also a second one; the first of each key is kept, so that no caller counts
    twice. Without a verified signature the text must not be read, so there is no way to get it from here.

    >>> key = Verifier.from_text("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    >>> open_note(b"hello\\n\\n\\xe2\\x80\\x94 mallory AAAAAAA=\\n", [key])
    Traceback (most recent call last):
    ropewalk.errors.SigInvalid: no signature of a known key; signed by "mallory"
    """
    known = _by_id(verifiers)
    text, signatures = _split_note(raw)
    verified: dict[tuple[str, bytes], NoteSignature] = {}
    unverified: list[NoteSignature] = []
    for signature in signatures:
        who = (signature.name, signature.key_id)
        if who not in known:
            unverified.append(signature)
            continue
        time_s = known[who].verify(text, signature.raw)
        verified.setdefault(who, NoteSignature(*who, signature.raw, time_s))
    if not verified:
        names = ", ".join(f'"{each.name}"' for each in unverified)
        raise SigInvalid(f"no signature of a known key; signed by {names}")
    return Note(text, tuple(verified.values()), tuple(unverified))


@dataclass(frozen=True, slots=True)
class SignedHead:
    """The statement of a signed head: this log, at this size, has this root. Its note names the signers.

    C2SP discourages extension lines; they are kept because the signature covers them.

    >>> SignedHead("example.com/log", 0, bytes(32)).to_text()
    'example.com/log\\n0\\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\\n'
    """

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.size <= SIZE_MAX:
            raise InvalidNote(f"{self.size} is no size of a log", size=self.size)
        if len(self.root) != HASH_BYTES:
            raise InvalidNote(f"a root has 32 bytes, this one {len(self.root)}")
        for line in (self.origin, *self.extensions):
            if not line or "\n" in line:
                raise InvalidNote("origin and extensions of a signed head are lines of text, none empty")
        _check_text(self.to_text())

    def to_text(self) -> str:
        """Return the text of the note."""
        return "\n".join((self.origin, str(self.size), base64_encode(self.root), *self.extensions)) + "\n"

    @classmethod
    def from_text(cls, text: str) -> SignedHead:
        """Return the head `to_text` wrote: no leading zeros, one spelling of the root, no empty lines.

        >>> SignedHead.from_text("example.com/log\\n07\\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\\n")
        Traceback (most recent call last):
        ropewalk.errors.InvalidNote: signed head: the size is written "07"
        """
        *lines, end = text.split("\n")
        if end or len(lines) < 3:
            raise InvalidNote("signed head: origin, size and root take three lines")
        origin, size, root, *extensions = lines
        if not _DECIMAL.fullmatch(size):
            raise InvalidNote(f'signed head: the size is written "{size[:80]}"')
        try:
            return cls(origin, int(size), base64_decode(root), tuple(extensions))
        except InvalidDigest as error:
            raise InvalidNote(f"signed head: {error.detail}") from error


def sign_head(head: SignedHead, *signers: Signer) -> bytes:
    """Return the head as a signed note. The log's own key should have the origin as its name.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> log = Signer("example.com/log", SigningKey.generate("ed25519", bytes(32)))
    >>> raw = sign_head(SignedHead("example.com/log", 0, bytes(32)), log)
    >>> open_head(raw, log.verifier)[0].size
    0
    """
    return sign_note(head.to_text(), *signers)


def cosign_head(raw: bytes, signer: Signer, now_s: int) -> bytes:
    """Return the same signed head with a witness's line added, in place of any it had from this witness before.

    A cosignature states: at this time, this was the largest head of the log that I had seen, and all the heads I saw
    were consistent. Making sure of that is for the caller.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> log = Signer("example.com/log", SigningKey.generate("ed25519", bytes(32)))
    >>> witness = Signer("w.example", SigningKey.generate("ed25519", b"w" * 32), SignatureType.COSIGNATURE)
    >>> raw = cosign_head(sign_head(SignedHead("example.com/log", 0, bytes(32)), log), witness, 1700000000)
    >>> open_head(raw, log.verifier, [witness.verifier])[1].signed_by(witness.verifier).time_s
    1700000000
    """
    text, signatures = _split_note(raw)
    SignedHead.from_text(text)
    who = (signer.name, signer.verifier.key_id)
    # Readers keep the first line of a key: behind an older one, the new time would never be seen.
    others = [each for each in signatures if (each.name, each.key_id) != who]
    return _join_note(text, [*others, NoteSignature(*who, signer.cosign(text, now_s))])


def keep_signatures(raw: bytes, verifiers: Iterable[Verifier]) -> bytes:
    """Return the note with one signature line for each of these keys, and no others.

    Always the same bytes for the same keys, in any order and number of lines.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> log = Signer("example.com/log", SigningKey.generate("ed25519", bytes(32)))
    >>> witness = Signer("w.example", SigningKey.generate("ed25519", b"w" * 32), SignatureType.COSIGNATURE)
    >>> raw = sign_head(SignedHead("example.com/log", 0, bytes(32)), log)
    >>> keep_signatures(cosign_head(raw, witness, 1700000000), [log.verifier]) == raw
    True
    """
    text, signatures = _split_note(raw)
    first = {(each.name, each.key_id): each for each in reversed(signatures)}
    known = dict.fromkeys((each.name, each.key_id) for each in verifiers)
    return _join_note(text, [first[who] for who in known if who in first])


def open_head(raw: bytes, log: Verifier, witnesses: Iterable[Verifier] = ()) -> tuple[SignedHead, Note]:
    """Return the head, if the log itself signed it; witnesses alone do not make one.

    The origin must be the name of the log's key. How many witnesses are enough is for the caller: `note.signed_by`
    names the signers and times.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> log = Signer("example.com/log", SigningKey.generate("ed25519", bytes(32)))
    >>> raw = sign_head(SignedHead("example.com/other", 0, bytes(32)), log)
    >>> open_head(raw, log.verifier)
    Traceback (most recent call last):
    ropewalk.errors.SigInvalid: head of "example.com/other", where "example.com/log" was expected
    """
    note = open_note(raw, [log, *witnesses])
    if note.signed_by(log) is None:
        raise SigInvalid(f'head is not signed by its log "{log.name}"', name=log.name)
    head = SignedHead.from_text(note.text)
    if head.origin != log.name:
        raise SigInvalid(f'head of "{head.origin}", where "{log.name}" was expected', origin=head.origin)
    return head, note


def claimed_head(raw: bytes) -> tuple[SignedHead, tuple[NoteSignature, ...]]:
    """Return the head and the signer names that a note claims. Nothing is verified.

    Use it to find the key for a log before verifying the head.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> log = Signer("example.com/log", SigningKey.generate("ed25519", bytes(32)))
    >>> head, lines = claimed_head(sign_head(SignedHead("example.com/log", 7, bytes(32)), log))
    >>> head.size, [line.name for line in lines]
    (7, ['example.com/log'])
    """
    text, lines = _split_note(raw)
    return SignedHead.from_text(text), tuple(lines)


def _join_note(text: str, signatures: Iterable[NoteSignature]) -> bytes:
    lines = [f"{_DASH}{each.name} {base64_encode(each.key_id + each.raw)}\n" for each in signatures]
    raw = f"{text}\n{''.join(lines)}".encode()
    _split_note(raw)  # never hand out what a reader would refuse, such as a line too many
    return raw


def _by_id(verifiers: Iterable[Verifier]) -> dict[tuple[str, bytes], Verifier]:
    known: dict[tuple[str, bytes], Verifier] = {}
    for verifier in verifiers:
        if known.setdefault((verifier.name, verifier.key_id), verifier) != verifier:
            raise InvalidKey(
                f'two keys of "{verifier.name}" share the id {verifier.key_id.hex()}', name=verifier.name
            )
    return known


def _split_note(raw: bytes) -> tuple[str, list[NoteSignature]]:
    if len(raw) > NOTE_BYTES_MAX:
        raise TooLarge(f"note of {len(raw)} bytes", size=len(raw), limit=NOTE_BYTES_MAX)
    try:
        whole = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidNote(f"note: byte {error.start} is not UTF-8", position=error.start) from error
    _check_text(whole)
    # The text may hold empty lines itself: the last one is the border.
    text, border, lines = whole.rpartition("\n\n")
    if not border or not lines:
        raise InvalidNote("note: no signature lines after an empty line")
    signatures = lines.removesuffix("\n").split("\n")
    if len(signatures) > SIGNATURES_MAX:
        raise TooLarge(f"note with {len(signatures)} signatures", size=len(signatures), limit=SIGNATURES_MAX)
    return text + "\n", [_parse_line(number, line) for number, line in enumerate(signatures, 1)]


def _parse_line(number: int, line: str) -> NoteSignature:
    if len(line) > SIGNATURE_LINE_MAX:
        raise TooLarge(f"note: signature line {number} is too long", size=len(line), limit=SIGNATURE_LINE_MAX)
    name, space, encoded = line.removeprefix(_DASH).partition(" ")
    if not line.startswith(_DASH) or not space or not is_key_name(name):
        raise InvalidNote(f"note: signature line {number} is not a dash, a name and a signature", line=number)
    try:
        raw = base64_decode(encoded)
    except InvalidDigest as error:
        raise InvalidNote(f"note: signature line {number}: {error.detail}", line=number) from error
    if len(raw) <= KEY_ID_BYTES:
        raise InvalidNote(f"note: signature line {number} has no signature after the key id", line=number)
    return NoteSignature(name, raw[:KEY_ID_BYTES], raw[KEY_ID_BYTES:])


def _check_text(text: str) -> None:
    if not text.endswith("\n"):
        raise InvalidNote("note: the last line does not end")
    if any(character < " " for character in set(text) - {"\n"}):
        raise InvalidNote("note: holds a control character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidNote("note: holds half a character (a lone surrogate)") from error
