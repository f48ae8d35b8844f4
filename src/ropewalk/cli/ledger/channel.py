"""Shared by the ledger commands: parse ids, find channels and their keys, open channels."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import parse_input, say
from ropewalk.cli.common.locations import NODE_KEY, here, key_folder, signing_key
from ropewalk.errors import Invalid, InvalidDigest, NotFound
from ropewalk.kernel.digest import hash_from_hex

if TYPE_CHECKING:
    from ropewalk.kernel.keys import SigningKey
    from ropewalk.ledger.channel.channel import Channel, OpenLog
    from ropewalk.ledger.envelope.model import Envelope
    from ropewalk.ledger.keys.approvals import Approval

WRITER_WAIT_S = 30.0  # how long a command waits for another writer


def envelope_id(text: str) -> bytes:
    """Parse an envelope id into its 32 bytes."""
    raw = hash_from_hex(text)
    if raw is None:
        raise InvalidDigest(
            f"envelope id must be 64 lowercase hex digits, got {text[:80]!r}",
            advice="Print envelope ids with `ropewalk ledger read`.",
        )
    return raw


def find_parent(
    channel: str, parent: str | None, event_class: str, correlation_id: str | None
) -> Envelope | None:
    """Return the parent of a new envelope: the one named, or the Command of a Result, if they are here."""
    from ropewalk.ledger.block.index_keys import claim_key
    from ropewalk.ledger.envelope.envelope import parse_stored

    if parent is not None:
        named = envelope_id(parent)
        with read_channel(channel) as reading:
            return reading.envelope(named)
    if event_class != "Result" or correlation_id is None:
        return None
    try:
        with read_channel(channel) as reading:
            place = reading.index.claim(claim_key("Command", correlation_id))
            if place is None:
                return None
            height, leaf = place
            (block,) = reading.blocks(height, height)
    except NotFound:  # no such channel here: the envelope may be for another repository
        return None
    return parse_stored(block.envelopes[leaf])


def version_for(channel: str) -> str:
    """Return the version for new envelopes: the oldest that the channel accepts now.

    Without a repository (the envelope will be sent to a server), return the oldest supported version.
    """
    from ropewalk.ledger.channel.channel import current_policy
    from ropewalk.ledger.versions.lifecycle import version_to_write
    from ropewalk.ledger.versions.versions import LIFECYCLE

    try:
        home = here().home
    except NotFound:
        return f"{LIFECYCLE[0].minor}.0"
    try:
        policy = current_policy(home, channel)
    except NotFound:
        policy = None
    return version_to_write(home, policy, time.time_ns())


@contextmanager
def channel_of(envelope: bytes, channel: str | None) -> Iterator[Channel]:
    """Open the channel that holds an envelope: the one named, or the first that has it."""
    from ropewalk.ledger.channel.settings import channels

    for each in [channel] if channel is not None else channels(here().home):
        with read_channel(each) as reading:
            if reading.index.position(envelope) is not None:
                yield reading
                return
    raise NotFound(f"no envelope {envelope.hex()} in {channel or 'any channel'}", id=envelope.hex())


def read_channel(channel: str) -> Channel:
    """Open a channel of the repository for reading."""
    from ropewalk.ledger.channel.channel import open_channel

    return open_channel(here().home, channel)


def only_channel(channel: str | None) -> str:
    """Return the channel that was named, or the only one of the repository."""
    from ropewalk.ledger.channel.settings import channels
    from ropewalk.ledger.replay.replay import companion

    if channel is not None:
        return channel
    names = channels(here().home)
    names = [name for name in names if not any(name == companion(each) for each in names)]
    if len(names) != 1:
        raise click.UsageError(f"the repository has {len(names)} channels: name one with --channel")
    return names[0]


def channel_keys(channel: str) -> tuple[SigningKey, ...]:
    """Return the channel's keys found on this machine, newest first, matched by public key and not by name."""
    from ropewalk.ledger.ingest.sealer import foreign_channel
    from ropewalk.ledger.keys.rotate import find_keys

    with read_channel(channel) as reading:
        key_history, name = reading.key_history(), reading.settings.key
    if len(key_history.validities) == 1:
        named = signing_key(name)  # the name recorded when the channel was created
        if named.public == key_history.current.key:
            return (named,)
    found = find_keys(key_history, here().keys, key_folder())
    if not found:  # a replica: its key is on another machine
        raise foreign_channel(channel, key_history.current.key)
    return found


def channel_key(channel: str) -> SigningKey:
    """Return the newest key of a channel found on this machine."""
    return channel_keys(channel)[0]


def open_sealing(channel: str) -> OpenLog:
    """Open the channel for writing with its keys found on this machine."""
    from ropewalk.ledger.keys import rotate

    return rotate.open_sealing(here().home, channel, lambda: channel_keys(channel), wait_s=WRITER_WAIT_S)


def read_approvals(paths: Iterable[str], act: dict[str, Any]) -> tuple[Approval, ...]:
    """Read approvals from files; all must approve that act."""
    from ropewalk.ledger.keys.approvals import parse_approval

    found = []
    for path in paths:
        said, approval = parse_input(path, parse_approval)
        if said != act:
            raise Invalid(
                f"{path} approves another proposal", advice="All approvals must be of the same proposal."
            )
        found.append(approval)
    return tuple(found)


def now_text() -> str:
    """Return the current time as envelopes write it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def check_first_line(channel: str, raw: bytes) -> None:
    """Raise if an envelope would be rejected as the first one of a missing channel."""
    from ropewalk.ledger.channel.channel import check_first
    from ropewalk.ledger.channel.settings import read_settings

    try:
        read_settings(here().home, channel)
    except NotFound:
        check_first(here().home, raw)


def open_for_append(channel: str) -> OpenLog:
    """Open the channel for writing; create a missing one with the defaults and print that."""
    from ropewalk.ledger.channel.settings import create_channel, read_settings

    home = here().home
    try:
        read_settings(home, channel)
    except NotFound:
        create_channel(home, channel, NODE_KEY, signing_key(NODE_KEY).public)
        say(f'created channel "{channel}", sealed by the key {NODE_KEY}')
    opened = open_sealing(channel)
    if opened.torn is not None:
        say(
            f"channel {channel}: removed {opened.torn.size} incomplete bytes after a crash; kept in {opened.torn.kept}"
        )
    return opened
