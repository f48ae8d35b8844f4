"""Keys that stay in a PKCS#11 token: a hardware security module, a smart card, or SoftHSM.

A key file names the key by a URI (RFC 7512) and has its public key, so that only signing needs the token:

    pkcs11:token=LABEL;object=NAME?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/ropewalk/pin

The PIN comes from `pin-source`, or from where passphrases come from; it is never part of the URI.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from ropewalk.disk.key_encryption import read_private_line
from ropewalk.errors import Conflict, InvalidKey, Unavailable
from ropewalk.kernel.keys import Algorithm, PublicKey, SigningKey
from ropewalk.kernel.signatures import SCHEMES

SCHEME: Final = "pkcs11:"
# EC_PARAMS of PKCS#11: the object identifiers 1.3.101.112, 1.2.840.10045.3.1.7 and 1.3.132.0.10.
_CURVES: Final[dict[Algorithm, bytes]] = {
    "ed25519": bytes.fromhex("06032b6570"),
    "p256": bytes.fromhex("06082a8648ce3d030107"),
    "secp256k1": bytes.fromhex("06052b8104000a"),
}
_PATH: Final = frozenset(("token", "serial", "object", "id", "type"))
_QUERY: Final = frozenset(("module-path", "pin-source"))
_lock = threading.RLock()  # sessions of PKCS#11 are not for several threads
_opened: dict[tuple[str, bytes], TokenKey] = {}

ReadPin = Callable[[], bytes]


class TokenKey(SigningKey):
    """A key that signs in its token. Its secret cannot be read, copied or sent to another process."""

    def __init__(self, public: PublicKey, sign: Callable[[bytes], bytes]) -> None:
        for name, value in (("alg", public.alg), ("public", public), ("_sign", sign)):
            object.__setattr__(self, name, value)

    @property
    def secret(self) -> bytes:
        """Raise: it cannot be read."""
        raise InvalidKey("the secret of this key stays in its token", advice="Use a key file for this job.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SigningKey) and self.public == other.public

    def __hash__(self) -> int:
        return hash(self.public)

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidKey("a key in a token cannot be sent to another process")


def parse_uri(uri: str) -> dict[str, str]:
    """Return the attributes of a PKCS#11 URI; reject those that are not used here.

    >>> parse_uri("pkcs11:token=a%20b;object=node?module-path=/lib/x.so")["token"]
    'a b'
    """
    path, _, query = uri.removeprefix(SCHEME).partition("?")
    found: dict[str, str] = {}
    for part, known, separator in ((path, _PATH, ";"), (query, _QUERY, "&")):
        for each in filter(None, part.split(separator)):
            name, equals, value = each.partition("=")
            if name not in known or not equals or name in found:
                why = (
                    "the PIN must not be in it"
                    if name == "pin-value"
                    else f"unknown or repeated {name[:40]!r}"
                )
                raise InvalidKey(f"PKCS#11 URI: {why}", advice="See docs/guide/keys.md#keys-in-hardware.")
            found[name] = unquote(value)
    if (
        not uri.startswith(SCHEME)
        or not {"object", "module-path"} <= found.keys()
        or not found.keys() & {"token", "serial"}
    ):
        raise InvalidKey(
            "PKCS#11 URI: expected token or serial, object and module-path",
            advice="As in `pkcs11:token=LABEL;object=NAME?module-path=/usr/lib/softhsm/libsofthsm2.so`.",
        )
    return found


def make_token_key(uri: str, alg: Algorithm, pin: ReadPin) -> tuple[PublicKey, bool]:
    """Return the public key of an object in a token, and whether it was there before; generate it if there is none."""
    pkcs11 = _library()
    given = parse_uri(uri)
    with _lock, _errors(), _session(uri, pin, write=True) as session:
        found = _find(session, given, pkcs11.ObjectClass.PUBLIC_KEY)
        if found is None:
            kind = pkcs11.KeyType.EC_EDWARDS if alg == "ed25519" else pkcs11.KeyType.EC
            domain = session.create_domain_parameters(
                kind, {pkcs11.Attribute.EC_PARAMS: _CURVES[alg]}, local=True
            )
            generate = pkcs11.Mechanism.EC_EDWARDS_KEY_PAIR_GEN if alg == "ed25519" else None
            options = {"mechanism": generate} if generate is not None else {}
            public, _ = domain.generate_keypair(
                store=True, label=given["object"], id=given.get("id", given["object"]).encode(), **options
            )
            return _public(public), False
        return _public(found), True


def open_token_key(uri: str, public: PublicKey, pin: ReadPin) -> SigningKey:
    """Return the key of a URI, logged in; once opened, it stays open for the process."""
    with _lock:
        known = _opened.get((uri, public.raw))
        if known is not None:
            return known
        pkcs11 = _library()
        with _errors():
            session = _session(uri, pin)
            private = _find(session, parse_uri(uri), pkcs11.ObjectClass.PRIVATE_KEY)
        if private is None:
            raise Unavailable(
                f"no private key {parse_uri(uri)['object']!r} in the token", advice="Check the URI."
            )
        mechanism = pkcs11.Mechanism.EDDSA if public.alg == "ed25519" else pkcs11.Mechanism.ECDSA
        process = os.getpid()

        def sign(message: bytes) -> bytes:
            if os.getpid() != process:
                raise Unavailable("a forked process must open the token again", advice="Start a new process.")
            with _lock:
                try:
                    with _errors():
                        hashed = message if public.alg == "ed25519" else sha256(message).digest()
                        made = _low(public.alg, private.sign(hashed, mechanism=mechanism))
                except Unavailable:
                    _opened.pop((uri, public.raw), None)  # open it again next time: the token may be back
                    raise
            public.verify(message, made)  # a token with another key, or a broken one, must not go unnoticed
            return made

        key = _opened[(uri, public.raw)] = TokenKey(public, sign)
        return key


def _low(alg: Algorithm, raw: bytes) -> bytes:
    """Return an ECDSA signature with the lower of the two valid s, the only one that verifiers here accept."""
    order = SCHEMES[alg].order
    if order is None:
        return raw
    s = int.from_bytes(raw[32:], "big")
    return raw[:32] + min(s, order - s).to_bytes(32, "big")


def _find(session: Any, given: dict[str, str], kind: Any) -> Any:
    pkcs11 = _library()
    wanted = {pkcs11.Attribute.CLASS: kind, pkcs11.Attribute.LABEL: given["object"]}
    if "id" in given:
        wanted[pkcs11.Attribute.ID] = given["id"].encode()
    found = list(session.get_objects(wanted))
    if len(found) > 1:
        raise Conflict(
            f"{len(found)} keys {given['object']!r} are in the token", advice="Name one with `id=`."
        )
    return found[0] if found else None


def _public(found: Any) -> PublicKey:
    attribute = _library().Attribute
    raw, curve = found[attribute.EC_POINT], found[attribute.EC_PARAMS]
    alg = next((alg for alg, each in _CURVES.items() if each == curve), None)
    if alg is None:
        raise InvalidKey(f"the key in the token must be of {', '.join(_CURVES)}")
    point = raw[2:] if len(raw) > 2 and raw[0] == 4 and raw[1] == len(raw) - 2 else raw  # a DER OCTET STRING
    if alg != "ed25519":
        point = bytes([2 + point[-1] % 2]) + point[1:33]
    return PublicKey(alg, point)


def _session(uri: str, pin: ReadPin, *, write: bool = False) -> Any:
    given = parse_uri(uri)
    library = _library().lib(given["module-path"])
    named = {
        "token_label": given.get("token"),
        "serial": given["serial"].encode() if "serial" in given else None,
    }
    token = library.get_token(**{name: value for name, value in named.items() if value is not None})
    source = given.get("pin-source")
    raw = pin() if source is None else read_private_line(Path(source.removeprefix("file:")))
    try:
        return token.open(rw=write, user_pin=raw.decode())
    except (
        _library().exceptions.UserAlreadyLoggedIn
    ):  # by another key of that token: it holds for the process
        return token.open(rw=write)


@contextmanager
def _errors() -> Iterator[None]:
    """Turn errors of the token into ours."""
    pkcs11 = _library()
    try:
        yield
    except pkcs11.exceptions.PinIncorrect as error:
        raise Unavailable(
            "the PIN of the token is wrong",
            advice="Check it before you try again: tokens lock after a few tries.",
        ) from error
    except (pkcs11.exceptions.PKCS11Error, OSError) as error:
        said = str(error) or type(error).__name__
        raise Unavailable(
            f"PKCS#11: {said}", advice="Check the URI, and that the token is connected."
        ) from error


def _library() -> Any:
    try:
        import pkcs11
    except ImportError as error:
        raise Unavailable(
            "keys in a token need the extra `hsm`", advice="From a checkout: pip install '.[hsm]'"
        ) from error
    return pkcs11
