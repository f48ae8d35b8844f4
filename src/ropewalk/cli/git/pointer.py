"""`ropewalk pointer`: seal private bytes, open them again, erase them. What is public is only ever the pointer."""

from __future__ import annotations

import time
from base64 import b64encode
from typing import TYPE_CHECKING

import click

from ropewalk.cli.common.command import (
    emit,
    emit_line,
    group,
    parse_input,
    read_input,
    say,
    session,
    write_output,
)
from ropewalk.cli.common.locations import here, sealing_key
from ropewalk.cli.common.options import flag, option, required
from ropewalk.cli.git.events import opened, short
from ropewalk.errors import NotFound, Unavailable, Usage
from ropewalk.gitlog.core.layout import check_namespace
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import content_id

if TYPE_CHECKING:
    from ropewalk.gitlog.privacy.blob_store import PrivateStore
    from ropewalk.gitlog.privacy.pointer import Pointer
    from ropewalk.kernel.seal import SealingKey


@group(
    "pointer",
    "ropewalk key new vault --alg xchacha20poly1305",
    "ropewalk pointer seal --file card.json --actor user:ada --policy v1 --key vault > pointer.json",
    "ropewalk pointer open pointer.json",
)
def pointer() -> None:
    """Seal private bytes and replace them by opaque pointers (S0 §8); open and erase them.

    Sealed bytes stay in <gitdir>/ropewalk/private/ and are never pushed.
    """


@pointer.command(
    "seal",
    "ropewalk pointer seal --file card.json --actor user:ada --policy v1 --key vault",
    "echo -n 4111 | ropewalk pointer seal --file - --actor user:ada --policy v1 --key vault --low-entropy",
)
@required("--file file", "F", "The private bytes; - reads stdin.")
@required("--actor", "ACTOR", "Who seals; bound into the seal.")
@required("--policy", "V", "The policy version; bound into the seal.")
@required("--key key", "NAME", "The sealing key.")
@flag("--low-entropy", "The bytes are easy to guess: leave their digest out.")
@option("--location", "URI", "Where the bytes are; default: this repository's node.")
@option("--capability", "URI", "How to open them; default: the key's name. Never a secret.")
def seal(
    file: str,
    actor: str,
    policy: str,
    key: str,
    low_entropy: bool,
    location: str | None,
    capability: str | None,
) -> None:
    """Seal bytes, keep them privately, and print the pointer.

    The same bytes, actor, policy and key give the same pointer again.
    """
    from ropewalk.gitlog.privacy.apply import CAPABILITY, location_of, record_of
    from ropewalk.gitlog.privacy.pointer import GUESSABLE_BITS, entropy_bits, seal_pointer

    place = here()
    plaintext = read_input(file)
    made = seal_pointer(
        sealing_key(key),
        plaintext,
        actor=actor,
        policy=policy,
        location=location or location_of(place),
        capability=capability or CAPABILITY + key,
        low_entropy=low_entropy,
    )
    _private().put(made.blob, record_of(made, actor, policy, key, time.time_ns() // 1_000_000))
    if not low_entropy and entropy_bits(plaintext) < GUESSABLE_BITS:
        say("note  these bytes are easy to guess, and their digest is in the pointer; consider --low-entropy")
    emit(made.pointer.document, lambda: jcs.encode(made.pointer.document).decode())


@pointer.command("open", "ropewalk pointer open pointer.json")
@click.argument("pointer_file", metavar="POINTER")
@option("-o --output", "F", "Where the bytes go; default: stdout.", default="-")
@option("--actor", "ACTOR", "Who sealed; default: as recorded here.")
@option("--policy", "V", "The policy version of the sealing; default: as recorded here.")
@option("--key", "NAME", "The sealing key; default: as recorded here.")
@option("--blob", "F", "The sealed bytes, if they are not in this repository.")
@option("--digest", "BLAKE3", "The plaintext's digest, where the pointer leaves it out.")
def open_(
    pointer_file: str,
    output: str,
    actor: str | None,
    policy: str | None,
    key: str | None,
    blob: str | None,
    digest: str | None,
) -> None:
    """Print the bytes behind POINTER, a file or -.

    They are printed only if every byte, the actor and the policy version are those of the sealing.
    """
    from ropewalk.gitlog.privacy.pointer import open_pointer

    read = _read(pointer_file)
    if blob is not None:
        if actor is None or policy is None or key is None:
            raise Usage("--blob needs --actor, --policy and --key: nothing is recorded here about it")
        sealed = read_input(blob)
    else:
        private = _private()
        record = private.find(read.ciphertext_digest, read.digest)
        sealed = private.blob(record.ciphertext_digest)
        actor, policy, key = actor or record.actor, policy or record.policy, key or record.key
        digest = digest or record.digest
    plaintext = open_pointer(_opening_key(key), read, sealed, actor=actor, policy=policy, digest=digest)
    if output != "-" or not session().json:
        write_output(output, plaintext)
    if session().json:
        answer = {"digest": content_id(plaintext), "size": len(plaintext)}
        answer |= {"actor": actor, "policy": policy, "key": key}
        answer |= {"plaintext_base64": b64encode(plaintext).decode()} if output == "-" else {}
        emit_line(answer)


@pointer.command("erase", "ropewalk pointer erase pointer.json --reason 'asked by the customer'")
@click.argument("pointer_file", metavar="POINTER")
@option("--reason", "REASON", "Why; kept with the tombstone. Say nothing private here.", default="")
@option("--ns", "NS", "The namespace the erasure is recorded in.", default="privacy")
def erase(pointer_file: str, reason: str, ns: str) -> None:
    """Erase the private bytes behind POINTER permanently.

    The pointer stays where it is. A tombstone records when and why, and the erasure is recorded as an event. Copies and
    backups made by other tools are not found.
    """
    from ropewalk.gitlog.core.commit import rfc3339
    from ropewalk.gitlog.privacy.secrets import refuse_secrets

    check_namespace(ns)
    refuse_secrets(reason, "the reason")
    read = _read(pointer_file)
    with opened() as log:
        private = log.private
        name = read.ciphertext_digest or private.find(None, read.digest).ciphertext_digest
        stone = private.erase(name, at=rfc3339(log.now_ms()), reason=reason, by=log.store.identity)
        payload = {
            "pointer": read.content_id,
            "ciphertext_digest": name,
            "erased_at": stone.erased_at,
            "reason": stone.reason,
        }
        receipt = log.append(ns, {"type": "pointer.erased", "payload": payload})
    answer = {**payload, "event": {"ns": ns, "ulid": receipt.ulid, "commit": receipt.commit}}
    emit(answer, f"ok  erased {short(name)}, recorded in {ns} as {receipt.ulid}; the pointer stays")


@pointer.command("ls", "ropewalk pointer ls")
def ls() -> None:
    """List what can be opened in this repository."""
    rows = [
        {name: getattr(each, name) for name in ("ciphertext_digest", "actor", "policy", "key", "sealed_at")}
        for each in _private().records()
    ]
    emit({"pointers": rows}, ("  ".join(map(str, row.values())) for row in rows), "nothing is sealed here")


def _opening_key(name: str) -> SealingKey:
    """Return the key a pointer was sealed with; a new one of that name would not open it."""
    try:
        return sealing_key(name)
    except NotFound as error:
        raise Unavailable(
            f'the key "{name}" that opens this pointer is not here',
            key=name,
            advice="Bring the key file from where the bytes were sealed; `ropewalk key ls` lists what is here.",
        ) from error


def _read(name: str) -> Pointer:
    from ropewalk.gitlog.privacy.pointer import parse_pointer

    return parse_input(name, parse_pointer)


def _private() -> PrivateStore:
    from ropewalk.gitlog.privacy.blob_store import PrivateStore

    return PrivateStore(here().home / "private")
