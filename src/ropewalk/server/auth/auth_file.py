"""The auth file: who the clients are, and what they may do. A change on disk holds from the next request on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from ropewalk.disk.durable import Disk, read_file
from ropewalk.errors import Conflict, Invalid, NotFound, RopewalkError, Unauthenticated, located
from ropewalk.kernel import jcs
from ropewalk.net.revocation import RevocationList
from ropewalk.net.tls import certificate_from, file_mark
from ropewalk.server.auth.rights import LOCAL, Identity, Right, parse_right

FILE_BYTES_MAX: Final = 4 << 20
TOKEN_PREFIX: Final = "rw_"  # noqa: S105 - so that scanners for leaked secrets know it
PROOFS: Final = ("token_sha256", "certificate_sha256", "certificate_subject")


@dataclass(frozen=True, slots=True)
class Client:
    """One entry of the file: a name, how the client proves that it is the one, and its rights."""

    name: str
    proof: str
    value: str
    rights: tuple[Right, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the entry as the file has it."""
        return {
            "name": self.name,
            self.proof: self.value,
            "rights": [right.to_json() for right in self.rights],
        }


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request carries. The token never leaves this object."""

    token: str | None = None
    certificate_sha256: str | None = None
    certificate_subject: str | None = None
    certificate: bytes | None = None  # DER

    def __repr__(self) -> str:
        return "Credentials(…)"


def credentials_of(values: list[bytes], certificate: bytes | None) -> Credentials:
    """Return what a request shows: a bearer token, a client certificate, or nothing."""
    token = None
    if values:
        scheme, _, rest = values[0].partition(b" ")
        # Two headers, or another scheme, count as an unknown token: never a way around one.
        good = len(values) == 1 and scheme.lower() == b"bearer"
        token = rest.strip().decode("latin-1") if good else ""
    if certificate is None:
        return Credentials(token)
    subject = x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
    return Credentials(token, hashlib.sha256(certificate).hexdigest(), subject, certificate)


@dataclass(frozen=True, slots=True)
class AuthRules:
    """The file, read."""

    clients: tuple[Client, ...] = ()
    anonymous: tuple[Right, ...] = ()

    def identify(self, shown: Credentials) -> Identity:
        """Return the client that the credentials belong to. Wrong ones are refused, none make it anonymous."""
        found: list[tuple[str, str]] = []
        if shown.token is not None:
            found.append(("token_sha256", hashlib.sha256(shown.token.encode()).hexdigest()))
        if shown.certificate_sha256 is not None:
            found.append(("certificate_sha256", shown.certificate_sha256))
        if shown.certificate_subject is not None:
            found.append(("certificate_subject", shown.certificate_subject))
        for proof in found:
            for client in self.clients:
                if (client.proof, client.value) == proof:
                    return Identity(client.name, client.rights)
        if shown.token is not None:
            raise Unauthenticated("the token is not known here, or it was revoked")
        return Identity("anonymous", self.anonymous, known=False)

    def to_bytes(self) -> bytes:
        """Return the text of the file."""
        document = {
            "version": 1,
            "clients": [client.to_json() for client in self.clients],
            "anonymous": [right.to_json() for right in self.anonymous],
        }
        return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"

    def with_client(self, client: Client) -> AuthRules:
        """Return the rules with one more client."""
        if any(each.name == client.name for each in self.clients):
            raise Conflict(
                f"a client {client.name!r} is there already",
                advice="Revoke it first: `ropewalk auth revoke NAME`.",
            )
        return replace(self, clients=(*self.clients, client))

    def without_client(self, name: str) -> AuthRules:
        """Return the rules without a client."""
        left = tuple(each for each in self.clients if each.name != name)
        if len(left) == len(self.clients):
            raise NotFound(f"there is no client {name!r}", name=name)
        return replace(self, clients=left)


def parse_rules(raw: bytes) -> AuthRules:
    """Read an auth file strictly.

    >>> parse_rules(b'{"version":1,"clients":[]}').clients
    ()
    """
    document: Any = jcs.parse(raw, bytes_max=FILE_BYTES_MAX)
    if not isinstance(document, dict) or document.get("version") != 1:
        raise Invalid('an auth file must be an object with "version": 1')
    if unknown := sorted(document.keys() - {"version", "clients", "anonymous"}):
        raise Invalid(f"auth file: unknown member {unknown[0]!r}")
    clients = tuple(_client(each) for each in _list(document, "clients"))
    names = [each.name for each in clients]
    if len(set(names)) != len(names):
        raise Invalid("auth file: two clients have the same name")
    anonymous = tuple(parse_right(each, "anonymous") for each in _list(document, "anonymous"))
    return AuthRules(clients, anonymous)


def _list(document: dict[str, Any], name: str) -> list[Any]:
    found = document.get(name, [])
    if not isinstance(found, list):
        raise Invalid(f'auth file: "{name}" must be a list')
    return found


def _client(document: Any) -> Client:
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        raise Invalid('auth file: a client must be an object with a "name"')
    name = document["name"]
    proofs = [each for each in PROOFS if each in document]
    if len(proofs) != 1 or document.keys() != {"name", "rights", *proofs}:
        raise Invalid(f'client {name!r:.80} must have "rights" and one of {", ".join(PROOFS)}')
    value = document[proofs[0]]
    if not isinstance(value, str) or not value or not _is_digest(proofs[0], value):
        raise Invalid(f'client {name!r:.80}: "{proofs[0]}" must be 64 lowercase hex digits')
    rights = tuple(parse_right(each, f"client {name!r:.80}") for each in _list(document, "rights"))
    return Client(name, proofs[0], value, rights)


def _is_digest(proof: str, value: str) -> bool:
    hexadecimal = len(value) == 64 and not set(value) - set("0123456789abcdef")
    return hexadecimal or proof == "certificate_subject"


class Authenticator:
    """Turns credentials into identities, by a file that is read again when it changes.

    Without a file, every client is `local`. While the file cannot be read, every client is refused. A client with a
    certificate that its authority has revoked is refused in any case.
    """

    def __init__(self, path: Path | None, revoked: RevocationList | None = None) -> None:
        self._path, self._revoked = path, revoked
        self._mark: object = None
        self._rules: AuthRules | None = None
        self.fault: str | None = None
        if path is not None:
            self._rules = read_rules(path)
            self._mark = file_mark(path)

    @property
    def required(self) -> bool:
        """Whether an auth file decides."""
        return self._path is not None

    def identify(self, shown: Credentials) -> Identity:
        """Return who sends a request."""
        if self._revoked is not None and shown.certificate is not None:
            self._revoked.check(certificate_from(shown.certificate))
        if self._path is None:
            return LOCAL
        mark = file_mark(self._path)
        if mark != self._mark:
            self._mark = mark
            try:
                self._rules, self.fault = read_rules(self._path), None
            except RopewalkError as error:
                self._rules, self.fault = None, f"{self._path.name}: {error.detail}"
        if self._rules is None:
            raise Unauthenticated(
                f"the server cannot read its auth file ({self.fault}) and refuses every client"
            )
        return self._rules.identify(shown)


def read_rules(path: Path) -> AuthRules:
    """Read an auth file; a missing one raises `NotFound`."""
    try:
        with located(path.name):
            return parse_rules(read_file(path, FILE_BYTES_MAX))
    except FileNotFoundError as error:
        raise NotFound(
            f"there is no auth file {path}", name=str(path), advice="Make one with `ropewalk auth add NAME`."
        ) from error


def write_rules(path: Path, rules: AuthRules) -> None:
    """Replace an auth file, readable by its owner alone."""
    Disk().replace(path, rules.to_bytes(), mode=0o600)


def new_client(name: str, entropy: bytes, rights: Sequence[Right]) -> tuple[Client, str]:
    """Return a client with a new token, and the token, which is kept nowhere.

    >>> new_client("ada", bytes(32), ())[1][:6]
    'rw_000'
    """
    token = TOKEN_PREFIX + entropy.hex()
    return Client(name, "token_sha256", hashlib.sha256(token.encode()).hexdigest(), tuple(rights)), token
