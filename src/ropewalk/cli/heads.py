"""`ropewalk heads`: heads that were seen, heads that are signed, and how a rewritten history is accepted."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

import click

from ropewalk.cli.gitlog import opened, short
from ropewalk.cli.manners import Group, emit, say
from ropewalk.cli.places import NODE_KEY, signing_key
from ropewalk.errors import RopewalkError, Usage

if TYPE_CHECKING:
    from ropewalk.gitlog.layout import Layout
    from ropewalk.node.repository import Repository

__all__ = ["heads"]


@click.group("heads", cls=Group, epilog="Examples:\n  ropewalk heads ls\n  ropewalk heads sign --ns prod\n")
def heads() -> None:
    """Heads: what this repository has seen, what somebody vouches for."""


@heads.command("ls", epilog="Examples:\n  ropewalk heads ls --json\n")
def ls() -> None:
    """List every log with its head and the head seen last."""
    from ropewalk.gitlog.layout import MESSAGES, SHIPLOG

    with opened() as log:
        rows = []
        for layout in (SHIPLOG, MESSAGES):
            # Also those that were seen and are gone.
            gone = (ref for ref in log.lines.seen.refs(layout.prefix) if layout.topic_of(ref) is not None)
            rows += [
                {"ref": ref, "head": _head(log, ref), "seen": log.lines.seen.get(ref)}
                for ref in sorted({*map(layout.head_ref, log.topics(layout)), *gone})
            ]
        width = max((len(str(row["ref"])) for row in rows), default=0)
        emit(
            {"heads": rows},
            lambda: (
                "\n".join(
                    f"{r['ref']:<{width}}  {short(r['head'] or '-'):<7}  seen {short(r['seen'] or '-')}"
                    for r in rows
                )
                or "no logs"
            ),
        )


@heads.command("accept", epilog="Examples:\n  ropewalk heads accept --ns governance\n")
@click.option("--ns", help="The namespace.")
@click.option("--topic", help="The topic, for messages.")
def accept(ns: str | None, topic: str | None) -> None:
    """Take a rewritten history as the truth. Who did so, when, and from what to what is written down."""
    layout, name = _named(ns, topic)
    with opened() as log:
        who = f"{getpass.getuser()} {log.store.identity}"
        old, new = log.lines.accept(layout, name, who)
        ref = layout.head_ref(name)
        emit({"ref": ref, "old": old, "head": new}, f"ok  {ref}: {short(old or '-')} -> {short(new or '-')}")


@heads.command("sign", epilog="Examples:\n  ropewalk heads sign --ns prod --key ada\n")
@click.option("--ns", help="The namespace.")
@click.option("--topic", help="The topic, for messages.")
@click.option("--key", default=NODE_KEY, show_default=True, help="The key that signs (ed25519).")
def sign(ns: str | None, topic: str | None, key: str) -> None:
    """Sign a log as it stands: a C2SP note over a Merkle tree of its content ids."""
    from ropewalk.node.vouching import sign_log

    layout, name = _named(ns, topic)
    with opened() as log:
        head, stored, vkey = sign_log(log, name, signing_key(key), layout=layout)
        emit(
            {
                "origin": head.origin,
                "size": head.size,
                "root": head.root.hex(),
                "commit": stored.commit,
                "vkey": vkey,
                "note": stored.note.decode(),
            },
            stored.note.decode().rstrip("\n"),
        )


def _head(log: Repository, ref: str) -> str | None:
    """Where a ref points; None also for one that cannot be read, which is said beside the list."""
    try:
        return log.store.head(ref)
    except RopewalkError as error:
        say(f"{ref} cannot be read: {error.detail}")
        return None


def _named(ns: str | None, topic: str | None) -> tuple[Layout, str]:
    from ropewalk.gitlog.layout import MESSAGES, SHIPLOG

    if ns is not None and topic is None:
        return SHIPLOG, ns
    if topic is not None and ns is None:
        return MESSAGES, topic
    raise Usage("name one log: --ns NS or --topic T")
