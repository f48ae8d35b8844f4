"""`ropewalk ledger mailbox`: serve a channel to local processes through shared memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from ropewalk.cli.common.command import emit, group, parse_input
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.options import integer, option, required
from ropewalk.cli.ledger.remote.remote import keys_from_here, run_ledger_server
from ropewalk.errors import Unverified

SLOTS = 512  # written out so that --help loads no engine; a test compares
SLOT_BYTES = 32 << 10


@group(
    "mailbox",
    "ropewalk ledger mailbox serve /dev/shm/audit --channel audit",
    "ropewalk ledger send mailbox:/dev/shm/audit --channel audit --file envelope.json",
)
def mailbox() -> None:
    """Serve a channel to local processes through shared memory.

    Append with `ledger send mailbox:FOLDER`, copy the channel with `ledger pull mailbox:FOLDER`.
    """


@mailbox.command(
    "serve",
    "ropewalk ledger mailbox serve /dev/shm/audit --channel audit",
    "ropewalk ledger mailbox serve /dev/shm/audit --channel audit --slots 1024 --slot-bytes 4096 --burst 5000",
)
@click.argument("folder", metavar="FOLDER")
@required("--channel", "C", "Channel; it must exist.")
@integer(
    "--slots",
    "N",
    "Maximum number of waiting envelopes per sender; a sender may request fewer.",
    least=1,
    most=4096,
    default=SLOTS,
)
@integer(
    "--slot-bytes",
    "BYTES",
    "Maximum size of an envelope as CBOR; a sender may request less.",
    least=64,
    most=8 << 20,
    default=SLOT_BYTES,
)
@integer("--burst", "N", "Maximum envelopes per second and sender (default: unlimited).", least=1)
@option("--record", "C", "Record the negotiation of every session in this channel.")
def serve(
    folder: str, channel: str, slots: int, slot_bytes: int, burst: int | None, record: str | None
) -> None:
    """Serve a channel through the mailbox FOLDER, created if it does not exist.

    Print one JSON line when it listens. A folder under /dev/shm stays in memory. Envelopes left by a killed server are
    appended first. Restricted envelopes are rejected: shared memory is not encrypted.
    """
    from ropewalk.ledger.mailbox.agreement import MailboxLimits
    from ropewalk.ledger.mailbox.server import MailboxServer

    limits = MailboxLimits(slots, slot_bytes, burst)
    server = MailboxServer(here().home, keys_from_here(), Path(folder), channel, limits=limits, record=record)
    asyncio.run(run_ledger_server(server))


@mailbox.command("show", "ropewalk ledger mailbox show /dev/shm/audit --trust trust.json")
@click.argument("folder", metavar="FOLDER")
@option("--trust", "F", "Trust file with the accepted signers of the mailbox.")
def show(folder: str, trust: str | None) -> None:
    """Show and check the content of the mailbox FOLDER, without changing it.

    There is a ring per session that is open, or was open when its server was killed. Exit 5 if a slot is damaged, the
    content differs from what the server signed, or no trusted key signed it.
    """
    from ropewalk.ledger.mailbox.ring_report import read_rings
    from ropewalk.ledger.proof.trust import parse_trust

    signers = parse_input(trust, parse_trust).block_signers if trust is not None else ()
    found = read_rings(Path(folder), signers)
    unsigned = [each for each in found if trust is not None and each.root is not None and each.signer is None]
    ok = all(each.ok for each in found) and not unsigned
    lines = []
    for each in found:
        wrong = [f"damaged: {', '.join(map(str, each.damaged))}"] if each.damaged else []
        if each.root is not None:
            by = each.signer or ("by no trusted key" if trust is not None else "signer not checked")
            wrong.append(f"root {each.root}, signed: {by}")
        state = "ok" if each.ok and each not in unsigned else "FAILED"
        size = f"slots={each.slots} slot_bytes={each.slot_bytes} taken={each.taken} waiting={each.waiting}"
        lines.append("  ".join([state, each.channel, size, *wrong]))
    emit(
        {"ok": ok, "rings": [each.to_json() for each in found]},
        "\n".join(lines) or "ok  no sessions are open",
    )
    if not ok:
        raise click.exceptions.Exit(Unverified.exit_code)
