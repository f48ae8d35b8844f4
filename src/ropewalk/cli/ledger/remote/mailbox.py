"""`ropewalk ledger mailbox`: a channel that processes of this machine append to through shared memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from ropewalk.cli.common.command import Group, emit, parse_input
from ropewalk.cli.common.locations import here
from ropewalk.cli.ledger.remote.remote import keys_from_here, run_ledger_server
from ropewalk.errors import Unverified

SLOTS = 512  # written out so that --help loads no engine; a test compares
SLOT_BYTES = 32 << 10


@click.group(
    "mailbox",
    cls=Group,
    epilog="Examples:\n  ropewalk ledger mailbox serve /dev/shm/audit --channel audit\n"
    "  ropewalk ledger send mailbox:/dev/shm/audit --channel audit --file envelope.json\n",
)
def mailbox() -> None:
    """A channel that processes of this machine append to through memory they share with its host.

    `ledger send mailbox:FOLDER` puts envelopes in, `ledger pull mailbox:FOLDER` keeps a copy.
    """


@mailbox.command(
    "serve",
    epilog="Examples:\n  ropewalk ledger mailbox serve /dev/shm/audit --channel audit\n"
    "  ropewalk ledger mailbox serve /dev/shm/audit --channel audit --slots 1024 --slot-bytes 4096 --burst 5000\n",
)
@click.argument("folder", metavar="FOLDER")
@click.option("--channel", required=True, metavar="C", help="The channel; it must be there.")
@click.option(
    "--slots",
    type=click.IntRange(1, 4096),
    default=SLOTS,
    show_default=True,
    metavar="N",
    help="How many envelopes of one sender may wait; a sender may ask for fewer.",
)
@click.option(
    "--slot-bytes",
    type=click.IntRange(64, 8 << 20),
    default=SLOT_BYTES,
    show_default=True,
    metavar="BYTES",
    help="The largest envelope, as CBOR; a sender may ask for less.",
)
@click.option(
    "--burst",
    type=click.IntRange(1),
    metavar="N",
    help="Take at most so many envelopes a second from each sender; the others wait.",
)
@click.option(
    "--record", metavar="C", help="Seal what every session negotiates in this channel, before it begins."
)
def serve(
    folder: str, channel: str, slots: int, slot_bytes: int, burst: int | None, record: str | None
) -> None:
    """Take envelopes for a channel out of the mailbox FOLDER, which is made where it is missing.

    Prints one JSON line when it listens. A folder under /dev/shm is memory and nothing else. What an earlier host was
    killed over is taken in first. Restricted envelopes are refused: shared memory does not encrypt.
    """
    from ropewalk.ledger.mailbox.agreement import MailboxLimits
    from ropewalk.ledger.mailbox.server import MailboxServer

    limits = MailboxLimits(slots, slot_bytes, burst)
    server = MailboxServer(here().home, keys_from_here(), Path(folder), channel, limits=limits, record=record)
    asyncio.run(run_ledger_server(server))


@mailbox.command(
    "show", epilog="Examples:\n  ropewalk ledger mailbox show /dev/shm/audit --trust trust.json\n"
)
@click.argument("folder", metavar="FOLDER")
@click.option("--trust", metavar="F", help="A trust file: whose signature on what was taken counts.")
def show(folder: str, trust: str | None) -> None:
    """Say what lies in the mailbox FOLDER, and whether it is what was put in. Nothing is taken out.

    There is a ring for each session that is open, or that was when its host was killed. Exit 5 if a slot is damaged,
    if what the host signed is not what lies there, or if none signed it whom the trust file names.
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
            by = each.signer or ("nobody who is trusted" if trust is not None else "not checked by whom")
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
