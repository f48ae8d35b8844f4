"""`ropewalk mirror`: copy events of one log into another."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.cli.common.command import command, counting, emit
from ropewalk.cli.common.options import flag, repeated, required
from ropewalk.cli.common.serving import read_token
from ropewalk.cli.git.events import opened, short
from ropewalk.cli.gossip.net import client_options

if TYPE_CHECKING:
    from ropewalk.bridge.event_copy import MirrorResult
    from ropewalk.bridge.gossip_mirror import GossipMirror
    from ropewalk.bridge.mirror import Mirror


@command(
    "mirror",
    "ropewalk mirror --from ns:prod --to topic:deploys",
    "ropewalk mirror --from topic:governance --to ns:governance",
    "ropewalk mirror --from ns:web --from ns:billing --to topic:all --follow",
    "ropewalk mirror --from channel:audit --to ns:audit",
    "ropewalk mirror --from wss://peer.example:8080 --to gossip:com.example.chat --follow",
)
@repeated(
    "--from sources",
    "LOG",
    "Source: ns:NAME, topic:NAME or channel:NAME; for a gossip topic the repository or the URL of a peer that has it; "
    "repeatable.",
    required=True,
)
@required("--to", "LOG", "Target: ns:NAME, topic:NAME or gossip:NAME; created if it does not exist.")
@flag("--follow", "Keep running, and copy new events as they arrive.")
@client_options
def mirror(
    sources: tuple[str, ...],
    to: str,
    follow: bool,
    ca: Path | None,
    client_cert: Path | None,
    client_key: Path | None,
    token_file: str | None,
) -> None:
    """Copy new events of one log into another log of this repository, in order.

    Between namespaces and topics an event keeps its bytes, ULID and content id; only the commit differs. An envelope of
    a ledger channel becomes a new event that names it, the same on every machine; its block is verified first, and
    confidential payloads are not copied.

    A second run continues where the first stopped, also after a kill. Several sources are merged by ULID with a delay
    of some seconds, because a slower source may still deliver older events. An event that is older than the target's
    head, or not valid there, is refused; the events before it stay copied.

    A gossip topic is fetched from other repositories or peers, each message verified; nothing is sent to them.
    """
    from ropewalk.bridge.mirror import keep_mirroring, open_mirror
    from ropewalk.gossip.peer.tls import client_context

    secure = any(each.lower().startswith("wss:") for each in sources)
    tls = client_context(ca, client_cert, client_key) if secure else None
    with opened() as log:
        copying = open_mirror(log, sources, to, tls=tls, token=read_token(token_file))
        if not follow:
            with counting(f"mirroring into {to}", "events") as progress:
                done = copying.catch_up(progress)
            emit(_answer(copying, done), lambda: _text(copying, done))
            return
        for done in keep_mirroring(copying):
            emit(_answer(copying, done), _text(copying, done))
            sys.stdout.flush()  # deliver it to the reader of a pipe at once


def _answer(copying: Mirror | GossipMirror, done: MirrorResult) -> dict[str, Any]:
    ref, head = copying.head()
    return {**asdict(done), "refs": {ref: head}}


def _text(copying: Mirror | GossipMirror, done: MirrorResult) -> str:
    ref, head = copying.head()
    lines = [f"ok  {done.mirrored} mirrored, {done.skipped} there already"]
    if head is not None:
        lines.append(f"    {ref} -> {short(head)}")
    if done.waiting:
        lines.append(f"    {done.waiting} recent events wait: another source may still deliver older ones")
    if done.withheld:
        lines.append(f"    {done.withheld} without their payload; `withheld` in each event names the reason")
    if done.attachments_left:
        lines.append(f"    {done.attachments_left} attachments left behind: a namespace holds envelopes only")
    return "\n".join(lines)
