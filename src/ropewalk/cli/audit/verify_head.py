"""How `ropewalk verify` checks a checkpoint: a signed head that somebody published, with or without its tiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropewalk.cli.common.command import parse_input, read_input, telling
from ropewalk.cli.common.locations import here

if TYPE_CHECKING:
    from ropewalk.cli.audit.verify import Asked
    from ropewalk.kernel.report import Report
    from ropewalk.ledger.transparency.head_check import HeadTrust, TreeSource


def verify_head_file(asked: Asked) -> Report:
    """The report on a checkpoint, or on a published folder."""
    from ropewalk.kernel.note.note import claimed_head
    from ropewalk.ledger.channel.channel import open_channel
    from ropewalk.ledger.transparency.head_check import verify_head
    from ropewalk.ledger.transparency.heads import channel_source, tile_source
    from ropewalk.ledger.transparency.publish import CHECKPOINT

    assert asked.path is not None
    path = asked.path / CHECKPOINT if asked.path.is_dir() else asked.path
    if asked.channel is not None and asked.tiles is not None:
        raise click.UsageError("name the --tiles or the --channel to look at, not both")
    raw = read_input(str(path))
    with telling(str(path)):
        head, _ = claimed_head(raw)
    trust = head_trust(asked)
    old = read_input(asked.old) if asked.old is not None else None
    if old is not None:
        with telling(str(asked.old)):
            claimed_head(old)
    if asked.channel is not None:
        with open_channel(here().home, asked.channel) as channel:
            return verify_head(raw, trust, source=channel_source(channel), old=old)
    folder = Path(asked.tiles) if asked.tiles is not None else path.parent
    source: TreeSource | None = None
    if asked.tiles is not None or (folder / "tile").is_dir():
        source = tile_source(folder, head.size, deep=asked.deep)
    return verify_head(raw, trust, source=source, old=old)


def head_trust(asked: Asked) -> HeadTrust:
    """Whom the options say to believe. A key of the log that is named outright stands for those of the trust file."""
    from ropewalk.cli.common.note_keys import note_keys, parse_note_keys
    from ropewalk.ledger.proof.trust import parse_trust
    from ropewalk.ledger.transparency.head_check import HeadTrust

    def parse(raw: bytes) -> HeadTrust:
        if raw.lstrip()[:1] == b"{":
            return HeadTrust.of(parse_trust(raw))
        return HeadTrust.of_keys(parse_note_keys(raw))

    trust = parse_input(asked.trust, parse) if asked.trust is not None else HeadTrust()
    named = tuple(key for name in asked.witnesses for key in note_keys(name))
    trust = replace(
        trust, witnesses=(*trust.witnesses, *named), threshold=asked.threshold, origin=asked.origin
    )
    if asked.vkeys:
        trust = replace(trust, keys=tuple(key for name in asked.vkeys for key in note_keys(name)), signers=())
    return trust
