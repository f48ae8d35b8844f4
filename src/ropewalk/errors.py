"""Every error of ropewalk, as one tree.

    RopewalkError                 1   something we did not foresee
    ├── Usage                     2   the command line makes no sense
    ├── Invalid                   8   the input itself is wrong
    │   ├── InvalidJson               not strict JSON, or not canonical
    │   ├── InvalidCbor               not deterministic CBOR
    │   ├── InvalidUlid               not a ULID
    │   ├── InvalidKey                not a usable key or did:key
    │   ├── InvalidName               not a topic, namespace or key name
    │   ├── InvalidEnvelope           breaks the schema of its kind
    │   ├── InvalidDigest             not a digest or content id in text form
    │   ├── InvalidProof              not a well-formed proof
    │   ├── InvalidNote               not a signed note
    │   ├── TooLarge                  beyond a stated limit
    │   └── RangeExceeded             a limit or height outside what is allowed
    ├── Conflict                  4   another writer was faster
    │   ├── HeadMoved                 compare-and-swap lost
    │   ├── OutOfOrder                would break the order of the log
    │   ├── ContentDiffers            same id, other content
    │   └── Replayed                  said before in this channel (S4 §7.8)
    ├── Unverified                5   the bytes do not prove what they claim
    │   ├── DigestMismatch            hash differs
    │   ├── SigInvalid                signature does not hold
    │   ├── BrokenLink                a parent or a span is missing or doubled
    │   ├── ProofRefused              a proof gives another root
    │   ├── Damaged                   stored bytes are not what was written
    │   ├── Forked                    two blocks claim one height
    │   └── HistoryRewritten          a head no longer contains the one seen before
    ├── Denied                    6   a policy said no
    │   ├── Unauthenticated           the server does not know the caller
    │   └── Quarantined               a peer whose evidence or policy has drifted
    ├── NotFound                  3   nothing of that name
    └── Unavailable               7   something we depend on is not there
        ├── RateLimited               the caller sends requests too fast
        └── NegotiateAgain            the session is out of date

The number is the exit code of the command line. `code` is what other software matches on: it never changes.
Each surface of the specifications spells some codes its own way; `SPELLINGS` is the one table of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, TypeVar

PROBLEM_TYPE_BASE = "https://gatos.dev/problems/"  # S0's example; a name, never fetched


class RopewalkError(Exception):
    """The root of the tree: carries facts as fields, a stable code, and what to do next.

    >>> error = HeadMoved("governance moved to 9f0aa21", topic="governance", instance="urn:commit:9f0aa21")
    >>> error.code, error.status, error.exit_code
    ('AppendRejected', 409, 4)
    >>> error.fields["topic"]
    'governance'
    """

    code: ClassVar[str] = "Internal"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    advice: ClassVar[str] = "This is a defect of ropewalk; report it with the command you ran."

    def __init__(
        self, detail: str, *, advice: str | None = None, instance: str | None = None, **fields: Any
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.instance = instance
        self.fields: dict[str, Any] = fields
        self.advice_now = advice if advice is not None else self.advice

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders (Spark workers, pools): keep the facts, not only the text.
        return _rebuild, (type(self), self.detail, self.advice_now, self.instance, self.fields)

    def to_problem(self) -> dict[str, Any]:
        """Return the error as RFC 9457 problem+json, shaped as in S0.

        >>> HeadMoved("head moved", topic="demo").to_problem()["type"]
        'https://gatos.dev/problems/append-rejected'
        """
        problem: dict[str, Any] = {
            "type": PROBLEM_TYPE_BASE + _kebab(self.code),
            "title": self.code,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if self.instance is not None:
            problem["instance"] = self.instance
        if self.advice_now:
            problem["advice"] = self.advice_now
        if self.code in SPELLINGS and SPELLINGS[self.code].aliases:
            problem["aliases"] = list(SPELLINGS[self.code].aliases)
        # A field never hides a member the RFC gives a meaning to.
        return {**{k: v for k, v in self.fields.items() if k not in problem}, **problem}


def _rebuild(
    kind: type[RopewalkError], detail: str, advice: str, instance: str | None, fields: dict[str, Any]
) -> RopewalkError:
    return kind(detail, advice=advice, instance=instance, **fields)


def _kebab(code: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", code).lower()


class Usage(RopewalkError):
    """The command line makes no sense: an unknown option, a missing argument."""

    code = "Usage"
    status = 400
    exit_code = 2
    advice = "Add --help to see what the command takes."


class Invalid(RopewalkError):
    """The input itself is wrong; trying again unchanged cannot help."""

    code = "InvalidInput"
    status = 400
    exit_code = 8
    advice = "Correct the input and try again."


class InvalidJson(Invalid):
    """Not strict JSON, or JSON that has no canonical form. Fields: `position` (byte offset), `reason`."""

    code = "InvalidJson"
    advice = "Write RFC 8259 JSON in UTF-8; integers beyond ±(2^53−1) belong in strings."


class InvalidCbor(Invalid):
    """Not deterministic CBOR. Fields: `reason`, and `position` where it is known."""

    code = "InvalidCbor"
    advice = "Encode with definite lengths, shortest heads and sorted, unique text keys."


class InvalidUlid(Invalid):
    """Not a ULID. Fields: `text`."""

    code = "InvalidUlid"
    advice = "A ULID has 26 characters of 0-9 A-Z without I, L, O, U, and starts with 0 to 7."


class InvalidKey(Invalid):
    """Not a usable key, signature or did:key. Fields: `alg` where it is known."""

    code = "InvalidKey"
    advice = "Ed25519 keys are 32 bytes, EC keys 33 bytes compressed; make one with `ropewalk key new NAME`."


class InvalidName(Invalid):
    """Not a topic, namespace, channel or key name. Fields: `name`."""

    code = "InvalidName"
    advice = "Use lower-case letters, digits, `.`, `_` and `-`, starting with a letter."


class InvalidEnvelope(Invalid):
    """The document breaks the schema of its kind. Fields: `where` (JSON pointer), `schema`."""

    code = "InvalidEnvelope"
    advice = "Compare the document with the schema named in the message."


class InvalidDigest(Invalid):
    """Not a digest, content id or CID in text form. Fields: `text`."""

    code = "InvalidDigest"
    advice = "A content id reads `blake3:` and 64 lower-case hex digits."


class InvalidProof(Invalid):
    """Not a well-formed proof."""

    code = "InvalidProof"
    advice = "Make the proof again with the command that produced it."


class InvalidNote(Invalid):
    """Not a C2SP signed note, or not a signed head."""

    code = "InvalidNote"
    advice = "A note is text, an empty line, and signature lines that start with an em dash."


class TooLarge(Invalid):
    """Beyond a stated limit. Fields: `size`, `limit`."""

    code = "TooLarge"
    status = 413
    advice = "Detach the payload or split the input."


class RangeExceeded(Invalid):
    """A limit, height or index outside what is allowed."""

    code = "RangeExceeded"
    status = 409
    advice = "Ask for a range inside the log."


class Conflict(RopewalkError):
    """Another writer was faster; read again, then decide."""

    code = "Conflict"
    status = 409
    exit_code = 4
    advice = "Read the log again and retry with what you find."


class HeadMoved(Conflict):
    """Compare-and-swap lost: the head is not the one the caller expected."""

    code = "AppendRejected"
    advice = "Another writer appended first; read the new head and append again."


class OutOfOrder(Conflict):
    """The entry would break the order of its log."""

    code = "TemporalOrder"
    advice = "Leave the ULID out and let ropewalk choose one above the head."


class ContentDiffers(Conflict):
    """The log already holds this id with other content."""

    code = "DigestMismatch"
    status = 422
    advice = "An id names one content for ever; use a new id for new content."


class Replayed(Conflict):
    """The same Command, Result, Alert or intent was accepted before in this channel. Fields: `height`, `index`."""

    code = "Replayed"
    advice = "Use a new correlation id, or send the first envelope again byte for byte to get its receipt."


class Unverified(RopewalkError):
    """The bytes do not prove what they claim."""

    code = "VerificationFailed"
    status = 422
    exit_code = 5
    advice = "Do not use this data; compare it with another replica."


class DigestMismatch(Unverified):
    """A hash differs from the one that was promised. Fields: `expected`, `got`, `where`."""

    code = "DigestMismatch"


class SigInvalid(Unverified):
    """A signature does not hold under the strict rule."""

    code = "SigInvalid"
    status = 401
    advice = "Check which key signed, and over which bytes."


class BrokenLink(Unverified):
    """A parent, an entry or a span is missing, doubled or in the wrong place."""

    code = "BrokenLink"


class ProofRefused(Unverified):
    """A well-formed proof that leads to another root. Fields: `step`."""

    code = "ProofRefused"


class Damaged(Unverified):
    """Stored bytes are not what was written. Fields: `height`, `segment`, `offset`, `reason`."""

    code = "Damaged"
    advice = "Nothing was changed or deleted. Restore the channel from a replica or a bundle."


class Forked(Unverified):
    """Two different blocks claim one height of a channel. Fields: `height`, `ours`, `theirs`."""

    code = "Forked"
    advice = "Both sides were kept as evidence; the operator of the channel must explain them."


class HistoryRewritten(Unverified):
    """A head no longer contains the one that was seen before."""

    code = "HistoryRewritten"
    advice = (
        "Find out who rewrote it: `ropewalk heads diff` shows what is displaced, "
        "`heads accept` takes the new history."
    )


class Denied(RopewalkError):
    """A policy said no."""

    code = "PolicyDenied"
    status = 403
    exit_code = 6
    advice = "Ask the owner of the policy, or change the event so that the policy allows it."


class Unauthenticated(Denied):
    """The server requires an identity, and the request carries none that it knows."""

    code = "Unauthenticated"
    status = 401
    advice = "Send the header `Authorization: Bearer TOKEN`; `ropewalk auth add NAME` makes a token."


class Quarantined(Denied):
    """A peer's evidence is stale, or its policy is not the channel's (S4 §14)."""

    code = "Quarantined"
    advice = "Negotiate with fresh evidence and the channel's policy; until then new sessions are refused."


class NotFound(RopewalkError):
    """Nothing of that name."""

    code = "NotFound"
    status = 404
    exit_code = 3
    advice = "Check the name; names are case-sensitive."


class Unavailable(RopewalkError):
    """Something we depend on is not there: a disk, a peer, a program, a key."""

    code = "CapabilityUnavailable"
    status = 503
    exit_code = 7
    advice = "Nothing was changed; try again when it is back."


class RateLimited(Unavailable):
    """The caller sends more than its share. Fields: `retry_after_s`."""

    code = "RateLimited"
    status = 429
    advice = "Wait for the time in Retry-After, then send it again."


class NegotiateAgain(Unavailable):
    """A session is out of date: evidence is stale, the policy has changed or a certificate was revoked (S4 §14)."""

    code = "NegotiateAgain"
    advice = "Open a new session with fresh evidence and a valid certificate; clients of ropewalk do so by themselves."


E = TypeVar("E", bound=RopewalkError)


def locate(error: E, where: str) -> E:
    """Return a copy of the error that names its file or line; inputs that fail together may share one error.

    >>> locate(Invalid("not JSON"), "trust.json").detail
    'trust.json: not JSON'
    """
    fields = {"input": where, **error.fields}
    return type(error)(f"{where}: {error.detail}", advice=error.advice_now, instance=error.instance, **fields)


@contextmanager
def located(where: str) -> Iterator[None]:
    """Add a location to every `Invalid` raised in the block.

    >>> with located("trust.json"):
    ...     raise Invalid("not JSON")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: trust.json: not JSON
    """
    try:
        yield
    except Invalid as error:
        raise locate(error, where) from error


class Spelling(NamedTuple):
    """How one code is written on each surface; `aliases` are other names S0 gives it, which its readers match on."""

    messages: str
    stream: str
    compat: str
    aliases: tuple[str, ...] = ()


# Native code (S0's error taxonomy) → Message Plane (S1), stream (S2), shiplog-compat.
SPELLINGS: dict[str, Spelling] = {
    "AppendRejected": Spelling("head_conflict", "APPEND_REJECTED", "AppendRejected", ("NotFastForward",)),
    "BrokenLink": Spelling("broken_link", "BROKEN_LINK", "DigestMismatch"),
    "CapabilityUnavailable": Spelling("unavailable", "UNAVAILABLE", "CapabilityUnavailable"),
    "Conflict": Spelling("conflict", "CONFLICT", "AppendRejected"),
    "Damaged": Spelling("damaged", "DAMAGED", "DigestMismatch"),
    "DigestMismatch": Spelling("digest_mismatch", "DIGEST_MISMATCH", "DigestMismatch"),
    "Forked": Spelling("forked", "FORKED", "AppendRejected"),
    "HistoryRewritten": Spelling("history_rewritten", "HISTORY_REWRITTEN", "AppendRejected"),
    "Internal": Spelling("internal", "INTERNAL", "Internal"),
    "InvalidCbor": Spelling("invalid_cbor", "INVALID_CBOR", "InvalidEnvelope"),
    "InvalidDigest": Spelling("invalid_digest", "INVALID_DIGEST", "InvalidEnvelope"),
    "InvalidEnvelope": Spelling("invalid_envelope", "INVALID_ENVELOPE", "InvalidEnvelope"),
    "InvalidInput": Spelling("invalid_input", "INVALID_SUB", "InvalidEnvelope"),
    "InvalidJson": Spelling("invalid_json", "INVALID_JSON", "InvalidEnvelope", ("InvalidEnvelope",)),
    "InvalidKey": Spelling("invalid_key", "INVALID_KEY", "SigInvalid"),
    "InvalidName": Spelling("invalid_topic", "INVALID_TOPIC", "InvalidEnvelope", ("InvalidEnvelope",)),
    "InvalidNote": Spelling("invalid_note", "INVALID_NOTE", "SigInvalid"),
    "InvalidProof": Spelling("invalid_proof", "INVALID_PROOF", "DigestMismatch"),
    "InvalidUlid": Spelling("invalid_ulid", "INVALID_ULID", "InvalidEnvelope", ("InvalidEnvelope",)),
    "NotFound": Spelling("topic_not_found", "NOT_FOUND", "NotFound"),
    "PolicyDenied": Spelling("policy_denied", "POLICY_DENIED", "PolicyFail"),
    "ProofRefused": Spelling("proof_refused", "PROOF_REFUSED", "DigestMismatch"),
    "RangeExceeded": Spelling("range_exceeded", "RANGE_EXCEEDED", "RangeExceeded", ("limit_out_of_range",)),
    "NegotiateAgain": Spelling("negotiate_again", "NEGOTIATE_AGAIN", "NegotiateAgain"),
    "Quarantined": Spelling("quarantined", "QUARANTINED", "Quarantined"),
    "RateLimited": Spelling("rate_limited", "RATE_LIMITED", "RateLimited"),
    "Replayed": Spelling("replayed", "REPLAYED", "AppendRejected"),
    "SigInvalid": Spelling("sig_invalid", "SIG_INVALID", "SigInvalid"),
    "TemporalOrder": Spelling("out_of_order", "TEMPORAL_ORDER", "TemporalOrder", ("UlidOutOfOrder",)),
    "TooLarge": Spelling("too_large", "TOO_LARGE", "InvalidEnvelope"),
    "Unauthenticated": Spelling("unauthenticated", "UNAUTHENTICATED", "PolicyFail"),
    "Usage": Spelling("usage", "USAGE", "Usage"),
    "VerificationFailed": Spelling("verification_failed", "VERIFICATION_FAILED", "DigestMismatch"),
}

# Refusals that only HTTP knows: status → the code, and what to do.
HTTP_CODES: dict[int, tuple[str, str]] = {
    400: ("InvalidInput", "Correct the request and send it again."),
    404: ("NotFound", "/openapi.json lists what there is."),
    405: ("MethodNotAllowed", "The header Allow names the methods."),
    406: ("NotAcceptable", "Ask for application/json."),
    408: ("RequestTimeout", "Send the whole request without long pauses."),
    413: ("TooLarge", "Split the request, or detach the payload."),
    415: ("UnsupportedMediaType", "Send application/json."),
    422: ("InvalidInput", "Correct the request and send it again."),
    431: ("TooLarge", "Send fewer or shorter headers."),
    426: ("UpgradeRequired", "Open it as a WebSocket (RFC 6455), or use /api/v1/events."),
}

__all__ = ["SPELLINGS", "Spelling"]
__all__ += [
    name for name, each in vars().items() if isinstance(each, type) and issubclass(each, RopewalkError)
]
