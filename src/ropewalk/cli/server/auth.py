"""`ropewalk auth`: who may use a server, and what for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ropewalk.cli.common.command import emit, group, say
from ropewalk.cli.common.locations import NODE_KEY, here, login, signing_key
from ropewalk.cli.common.options import option, repeated
from ropewalk.cli.common.suggest import did_you_mean
from ropewalk.cli.ledger.channel import open_for_append, version_for
from ropewalk.errors import InvalidName, NotFound

file_option = option("--file file", "FILE", "The auth file; default: ropewalk/auth.json in the repository.")


@group(
    "auth",
    "ropewalk auth add ada --right shiplog/prod:read,append",
    "ropewalk auth ls",
    "ropewalk auth revoke ada",
)
def auth() -> None:
    """Identities and rights of the clients of `ropewalk serve`."""


@auth.command("add", "ropewalk auth add ci --right 'messages/jobs.**:read,append'")
@click.argument("name")
@repeated(
    "--right rights",
    "LOG:ACTION",
    "A log pattern and actions (read, append, checkpoint, admin; joined by commas); may be given again.",
)
@option("--certificate-sha256", "HEX", "Know the client by this certificate, not by a token.")
@file_option
def add(name: str, rights: tuple[str, ...], certificate_sha256: str | None, file: str | None) -> None:
    """Add a client and print its token, once. The file keeps a digest of it."""
    from ropewalk.server.auth.auth_file import AuthRules, Client, new_client, read_rules, write_rules
    from ropewalk.server.auth.rights import parse_rights

    if not name.isprintable() or not 0 < len(name) <= 64:
        raise InvalidName(
            f"a client name must be 1 to 64 printable characters, got {name!r:.80}", name=name[:80]
        )
    path = _path(file)
    try:
        rules = read_rules(path)
    except NotFound:
        rules = AuthRules()
    granted = parse_rights(rights)
    token = None
    if certificate_sha256 is not None:
        client = Client(name, "certificate_sha256", certificate_sha256.lower().replace(":", ""), granted)
    else:
        client, token = new_client(name, os.urandom(32), granted)
    changed = rules.with_client(client)
    _record("auth.add", {"client": name, "rights": [right.to_json() for right in granted]})
    write_rules(path, changed)
    emit(
        {"name": name, "token": token, "file": str(path), "rights": [right.to_json() for right in granted]},
        token if token is not None else f"ok  {name}",
    )
    if token is not None:
        say(f"{name} shows this token as `Authorization: Bearer TOKEN`; it is printed only now")
    if not granted:
        say(f"{name} has no right yet: revoke it and add it again with --right LOG:ACTION")


@auth.command("ls", "ropewalk auth ls --json")
@file_option
def ls(file: str | None) -> None:
    """List the clients and their rights."""
    from ropewalk.server.auth.auth_file import read_rules

    rules = read_rules(_path(file))
    rows = [
        {"name": each.name, "by": each.proof, "rights": [right.to_json() for right in each.rights]}
        for each in rules.clients
    ]

    lines = []
    for each in rules.clients:
        held = "; ".join(
            f"{', '.join(log.text for log in right.logs)}: {', '.join(sorted(right.actions))}"
            for right in each.rights
        )
        lines.append(f"{each.name:<20} {each.proof:<20} {held or 'no right'}")
    anonymous = [right.to_json() for right in rules.anonymous]
    emit({"clients": rows, "anonymous": anonymous}, lines, "no clients")


@auth.command("revoke", "ropewalk auth revoke ada")
@click.argument("name")
@file_option
def revoke(name: str, file: str | None) -> None:
    """Remove a client. A server that runs refuses it from the next request on and ends its streams."""
    from ropewalk.server.auth.auth_file import read_rules, write_rules

    path = _path(file)
    rules = read_rules(path)
    try:
        changed = rules.without_client(name)
    except NotFound as error:
        like = did_you_mean(name, (each.name for each in rules.clients))
        error.advice_now = like or "`ropewalk auth ls` lists them."
        raise
    _record("auth.revoke", {"client": name})
    write_rules(path, changed)
    emit({"name": name, "file": str(path)}, f"ok  {name} is revoked")


def _path(file: str | None) -> Path:
    return Path(file) if file is not None else here().home / "auth.json"


def _record(act: str, facts: dict[str, Any]) -> None:
    """Seal the act into the audit channel first: an act that cannot be recorded does not take place."""
    from ropewalk.server.auth.audit import CHANNEL, audit_envelope

    raw = audit_envelope(signing_key(NODE_KEY), act, login()[1], facts, version_for(CHANNEL))
    with open_for_append(CHANNEL) as sealing:
        sealing.log.submit(raw)
