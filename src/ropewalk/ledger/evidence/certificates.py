"""Certificate chains that end in a configured root, judged at a given time. No root is trusted by default."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.utils import CryptographyDeprecationWarning

from ropewalk.errors import Invalid, Unverified

CHAIN_MAX: Final = 10
_PEM: Final = re.compile("-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")
_LeafRule = Callable[[x509.BasicConstraints | None, x509.KeyUsage | None, str], None]
# Certificates are read lazily: a field that makes no sense raises one of these whenever it is first looked at.
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


def parse_pem(text: str) -> x509.Certificate:
    """Return the one certificate that a PEM text holds."""
    if text.count("-----BEGIN CERTIFICATE-----") > 1:
        # Only the first would be read, which may be another than was meant.
        raise Invalid("more than one certificate in one PEM text", advice="Give each by itself.")
    try:
        found = _load(x509.load_pem_x509_certificate, text.encode())
    except _UNREADABLE as error:
        raise Invalid("this is no certificate in PEM form", advice="Give a PEM certificate.") from error
    _check_whole(found, found.public_bytes(Encoding.DER))
    return found


def parse_certificates(raw: bytes) -> list[str]:
    """Return the certificates of a file, in its order, as PEM texts: one in DER, or any number in PEM.

    >>> parse_certificates(b"")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: there is no certificate in it
    """
    if raw[:1] == b"\x30":
        return [parse_der(raw).public_bytes(Encoding.PEM).decode()]
    texts = _PEM.findall(raw.decode("ascii", "replace"))
    if not 0 < len(texts) <= CHAIN_MAX:
        raise Invalid("there is no certificate in it" if not texts else f"more than {CHAIN_MAX} certificates")
    return [parse_pem(text).public_bytes(Encoding.PEM).decode() for text in texts]


def parse_der(raw: bytes) -> x509.Certificate:
    """Return a certificate from DER bytes."""
    try:
        found = _load(x509.load_der_x509_certificate, raw)
    except _UNREADABLE as error:
        raise Invalid("this is no certificate in DER form") from error
    _check_whole(found, raw)
    return found


def _check_whole(found: x509.Certificate, raw: bytes) -> None:
    if not raw.endswith(b"\x00" + found.signature):  # it may say that not all bits of its signature count
        raise Invalid("this is no certificate: its signature is no whole number of bytes")


def _load(read: Callable[[bytes], x509.Certificate], raw: bytes) -> x509.Certificate:
    with warnings.catch_warnings():
        # Future deprecations of a certificate concern its issuer, not the verifier.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        return read(raw)


def check_chain(
    leaf: x509.Certificate, above: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], at_ns: int
) -> x509.Certificate:
    """Return the root of the leaf's chain; raise if there is none. `above` goes from the leaf's issuer upwards.

    Checked: issuers and signatures, validity at the given time, basicConstraints with path lengths, keyUsage, and
    unknown critical extensions. `crls` checks revocation.
    """
    return _check_readable([leaf, *above], roots, at_ns, _check_signer)


def check_endorsement(
    leaf: x509.Certificate, above: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], at_ns: int
) -> x509.Certificate:
    """Check a chain like `check_chain`, for the key of a chip, whose vendor uses its own extensions."""
    return _check_readable([leaf, *above], roots, at_ns, _check_no_authority)


def public_key_of(certificate: x509.Certificate) -> Any:
    """Return the key of a certificate."""
    try:
        return certificate.public_key()
    except _UNREADABLE as error:
        raise Unverified("the key of a certificate cannot be read") from error


def extensions_of(certificate: x509.Certificate) -> dict[str, bytes]:
    """Return the extensions that no standard of the library covers, by their object ids: their bare values."""
    try:
        return {
            each.oid.dotted_string: each.value.value
            for each in certificate.extensions
            if isinstance(each.value, x509.UnrecognizedExtension)
        }
    except _UNREADABLE as error:
        raise Unverified("the extensions of a certificate cannot be read") from error


def _check_readable(
    chain: list[x509.Certificate], roots: Sequence[x509.Certificate], at_ns: int, leaf: _LeafRule
) -> x509.Certificate:
    try:
        return _check_chain(chain, roots, datetime.fromtimestamp(at_ns // 10**9, UTC), leaf)
    except _UNREADABLE as error:
        raise Unverified(f"a certificate cannot be read: {error}"[:200]) from error


def _check_chain(
    chain: list[x509.Certificate], roots: Sequence[x509.Certificate], at: datetime, leaf: _LeafRule
) -> x509.Certificate:
    pinned = {root.public_bytes(Encoding.DER) for root in roots}
    if len(chain) > CHAIN_MAX:
        raise Unverified(f"a chain of {len(chain)} certificates; at most {CHAIN_MAX}")
    if chain[-1].public_bytes(Encoding.DER) not in pinned:
        issuer = next((root for root in roots if root.subject == chain[-1].issuer), None)
        if issuer is None:
            raise Unverified("the certificate chain ends in no configured root")
        chain.append(issuer)
    for depth, certificate in enumerate(chain):
        name = certificate.subject.rfc4514_string()[:80] or "a certificate"
        if not certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc:
            raise Unverified(f"{name} is not valid at {at.isoformat()}")
        _check_purpose(certificate, depth, name, leaf)
        issuer = chain[depth + 1] if depth + 1 < len(chain) else None
        if issuer is not None:
            _check_issued(certificate, issuer, name)
    return chain[-1]


def _check_issued(certificate: x509.Certificate, issuer: x509.Certificate, name: str) -> None:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (*_UNREADABLE, InvalidSignature) as error:
        raise Unverified(f"{name} was not issued by the certificate above it") from error


def _check_purpose(certificate: x509.Certificate, depth: int, name: str, leaf: _LeafRule) -> None:
    known = (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage)
    basic: x509.BasicConstraints | None = None
    usage: x509.KeyUsage | None = None
    try:
        extensions = list(certificate.extensions)
    except _UNREADABLE as error:
        raise Unverified(f"{name}: its extensions cannot be read") from error
    for extension in extensions:
        if isinstance(extension.value, x509.BasicConstraints):
            basic = extension.value
        elif isinstance(extension.value, x509.KeyUsage):
            usage = extension.value
        elif extension.critical and not isinstance(extension.value, known):
            raise Unverified(f"{name}: critical extension {extension.oid.dotted_string} is not understood")
    if depth == 0:
        leaf(basic, usage, name)
        return
    if basic is None or not basic.ca:
        raise Unverified(f"{name} is no authority (basicConstraints)")
    if basic.path_length is not None and basic.path_length < depth - 1:
        raise Unverified(f"{name} allows {basic.path_length} authorities below it, not {depth - 1}")
    if usage is None or not usage.key_cert_sign:
        raise Unverified(f"{name} may not issue: its key usage lacks keyCertSign")


def _check_signer(basic: x509.BasicConstraints | None, usage: x509.KeyUsage | None, name: str) -> None:
    _check_no_authority(basic, usage, name)
    if usage is None or not usage.digital_signature:
        raise Unverified(f"{name} may not sign: its key usage lacks digitalSignature")


def _check_no_authority(basic: x509.BasicConstraints | None, usage: x509.KeyUsage | None, name: str) -> None:
    if basic is not None and basic.ca:
        raise Unverified(f"{name} must not be a certificate authority")
    if usage is not None and not usage.digital_signature:
        raise Unverified(f"{name} may not sign: its key usage lacks digitalSignature")
