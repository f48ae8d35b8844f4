"""`ropewalk heads`: list, compare, accept and sign heads of logs."""

from __future__ import annotations

from typing import Any

import click

from ropewalk.cli.common.command import emit, fail, group, say, session
from ropewalk.cli.common.locations import NODE_KEY, login, signing_key
from ropewalk.cli.common.options import flag
from ropewalk.cli.git.displaced import diff, log_options, named_log, rescue
from ropewalk.cli.git.events import opened, short
from ropewalk.errors import RopewalkError
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG


@group("heads", "ropewalk heads ls", "ropewalk heads diff --ns prod", "ropewalk heads sign --ns prod")
def heads() -> None:
    """List, compare, accept and sign heads of logs."""


@heads.command("ls", "ropewalk heads ls --json")
def ls() -> None:
    """List every log with its head and the head seen last. If one cannot be read, exit with that error's code."""
    with opened() as log:
        rows: list[dict[str, Any]] = []
        code = 0
        for layout in (SHIPLOG, MESSAGES):
            # Also logs seen before whose ref is missing.
            gone = (ref for ref in log.lines.seen.refs(layout.prefix) if layout.topic_of(ref) is not None)
            for ref in sorted({*map(layout.head_ref, log.topics(layout)), *gone}):
                row = {"ref": ref, "head": None, "seen": None, "problem": None}
                for name, look in (("head", log.store.head), ("seen", log.lines.seen.get)):
                    try:
                        row[name] = look(ref)
                    except RopewalkError as error:
                        row["problem"] = row["problem"] or error.detail
                        code = code or error.exit_code
                        if not session().json:
                            fail(error, as_json=False)
                rows.append(row)
        width = max((len(str(row["ref"])) for row in rows), default=0)
        lines = (
            f"{r['ref']:<{width}}  {'unreadable' if r['problem'] else short(r['head'] or '-'):<7}  "
            f"seen {short(r['seen'] or '-')}"
            for r in rows
        )
        emit({"heads": rows}, lines, "no logs")
        if code:
            raise click.exceptions.Exit(code)


@heads.command(
    "accept", "ropewalk heads accept --ns governance", "ropewalk heads accept --ns governance --forget"
)
@log_options
@flag("--forget", "Do not keep displaced events; git will prune them.")
def accept(ns: str | None, topic: str | None, forget: bool) -> None:
    """Accept a rewritten history, and record who accepted it, when, and both heads.

    Displaced events stay under refs/ropewalk/displaced/, for `heads diff --old` and `heads rescue`.
    """
    layout, name = named_log(ns, topic)
    with opened() as log:
        done = log.lines.accept(layout, name, f"{login()[0]} {log.store.identity}", keep=not forget)
        found = done.divergence
        counts = {"displaced": 0, "lost": 0, "gone": 0}
        if found is not None:
            counts = {"displaced": len(found.displaced), "lost": len(found.lost), "gone": len(found.gone)}
        answer = {
            "ref": done.ref,
            "old": done.old,
            "head": done.head,
            "accepted": done.anew or found is not None,
        }
        moved = f"ok  {done.ref}: {short(done.old or '-')} -> {short(done.head or '-')}"
        if done.anew:
            moved = f"ok  {done.ref}: the head seen before was damaged; {short(done.head or '-')} is seen now"
        elif found is None:
            moved = f"ok  {done.ref}: nothing to accept, {short(done.head or '-')} contains all that was seen"
        emit({**answer, **counts, "kept": done.kept}, moved)
        if found is None or forget:
            return
        if done.kept is None:
            say(
                f"{len(found.gone)} of {len(found.displaced)} displaced entries are not there any more, so the line "
                f"cannot be kept: `ropewalk heads rescue --old {short(done.old or '-')}` records again what is left, "
                "until git clears it away"
            )
        elif found.lost:
            say(
                f"{len(found.lost)} displaced events are kept as {done.kept}; "
                "`ropewalk heads rescue` records them again"
            )


@heads.command("sign", "ropewalk heads sign --ns prod --key ada")
@log_options
@click.option("--key", default=NODE_KEY, help="Signing key (ed25519).")
def sign(ns: str | None, topic: str | None, key: str) -> None:
    """Sign the current head of a log: a C2SP note over a Merkle tree of its content ids."""
    from ropewalk.gitlog.repository.signing import sign_log

    layout, name = named_log(ns, topic)
    with opened() as log:
        head, stored, vkey = sign_log(log, name, signing_key(key), layout=layout)
        note = stored.note.decode()
        answer = {"origin": head.origin, "size": head.size, "root": head.root.hex(), "commit": stored.commit}
        emit({**answer, "vkey": vkey, "note": note}, note.rstrip("\n"))


heads.add_command(diff)
heads.add_command(rescue)
