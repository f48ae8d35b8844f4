"""RFC 3161 time stamps of heads, archive manifests and other files, checked offline against pinned roots."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from ropewalk.errors import Invalid, TooLarge, Unavailable, Unverified
from ropewalk.kernel.report import Step
from ropewalk.ledger.evidence.certificates import parse_pem
from ropewalk.net.http_post import HttpAnswer, post_bytes

STAMP_BYTES_MAX: Final = 1 << 18
QUERY, REPLY = "application/timestamp-query", "application/timestamp-reply"
_HASHES: Final = {
    "2.16.840.1.101.3.4.2.1": hashlib.sha256,
    "2.16.840.1.101.3.4.2.2": hashlib.sha384,
    "2.16.840.1.101.3.4.2.3": hashlib.sha512,
}


def post_query(url: str, body: bytes) -> HttpAnswer:
    """POST a time stamp query."""
    return post_bytes(url, body, {"Content-Type": QUERY})


def fetch_timestamp(
    url: str, message: bytes, roots: Sequence[str], *, send: Callable[[str, bytes], HttpAnswer] = post_query
) -> bytes:
    """Ask a time stamp authority for the time of these bytes; return its answer if it verifies under the roots."""
    library = _library()
    query = (
        library.TimestampRequestBuilder().data(message).hash_algorithm(library.HashAlgorithm.SHA256).build()
    )
    answer = send(url, query.as_bytes())
    if answer.status != 200 or answer.media_type != REPLY:
        raise Unavailable(f"{url} answers {answer.status} {answer.media_type!r:.60}, not {REPLY}")
    check_timestamp(answer.body, message, roots, nonce=query.nonce)
    return answer.body


def check_timestamp(
    raw: bytes, message: bytes, roots: Sequence[str], *, nonce: int | None = None
) -> datetime:
    """Return the time that an authority under one of the roots (PEM) has signed for these bytes.

    Raise `Unverified` if anything does not hold, `Invalid` if it is no time stamp. Certificates must be valid at that
    time, not now.
    """
    library = _library()
    stamp = _parse(raw)
    hash_ = _HASHES.get(stamp.tst_info.message_imprint.hash_algorithm.dotted_string)
    if hash_ is None:
        raise Unverified("time stamp: the hash must be SHA-256, SHA-384 or SHA-512")
    if stamp.tst_info.message_imprint.message != hash_(message).digest():
        raise Unverified("time stamp: it is of other bytes")
    builder = library.VerifierBuilder(roots=[parse_pem(each) for each in roots], nonce=nonce)
    try:
        builder.build().verify(stamp, hash_(message).digest())
    except (library.VerificationError, ValueError) as error:
        raise Unverified(f"time stamp: {error}"[:300]) from error
    return _time(stamp)


def timestamp_step(raw: bytes, candidates: Sequence[tuple[str, bytes]], roots: Sequence[str]) -> Step:
    """Return the step of a report: which of the named bytes were stamped, when, and by a trusted authority."""
    stamp = _parse(raw)
    hash_ = _HASHES.get(stamp.tst_info.message_imprint.hash_algorithm.dotted_string)
    imprint = stamp.tst_info.message_imprint.message
    named = [each for each in candidates if hash_ is not None and hash_(each[1]).digest() == imprint]
    if not named:
        return Step("timestamp", "failed", "the time stamp is of other bytes")
    name, message = named[0]
    if not roots:
        return Step.untrusted(
            "timestamp", f"{name}: says {_time(stamp).isoformat()}; no --tsa-root was given"
        )
    try:
        time = check_timestamp(raw, message, roots)
    except Unverified as error:
        return Step("timestamp", "failed", error.detail)
    return Step("timestamp", "passed", f"{name} existed at {time.isoformat()}", {"time": time.isoformat()})


def _time(stamp: Any) -> datetime:
    return datetime.fromtimestamp(stamp.tst_info.gen_time.timestamp(), UTC)


def _parse(raw: bytes) -> Any:
    if len(raw) > STAMP_BYTES_MAX:
        raise TooLarge(f"time stamp of {len(raw)} bytes", size=len(raw), limit=STAMP_BYTES_MAX)
    try:
        stamp = _library().decode_timestamp_response(raw)
        _ = stamp.tst_info.message_imprint  # a refusal has none
    except ValueError as error:
        raise Invalid(f"not a granted RFC 3161 time stamp: {error}"[:200]) from error
    return stamp


def _library() -> Any:
    try:
        import rfc3161_client
    except ImportError as error:
        raise Unavailable(
            "time stamps need rfc3161-client, which is not installed",
            advice='Run: pip install ".[timestamp]"',
        ) from error
    return rfc3161_client
