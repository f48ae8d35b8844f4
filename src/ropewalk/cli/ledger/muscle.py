"""`ropewalk ledger muscle`: programs over a channel, with the versions of envelopes they support."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ropewalk.cli.common.command import emit, group, parse_input, progress
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.options import option
from ropewalk.cli.ledger.channel import WRITER_WAIT_S, channel_keys, only_channel
from ropewalk.cli.ledger.storage.replay import named_reducer
from ropewalk.errors import Invalid
from ropewalk.kernel import jcs

channel_choice = option("--channel", "C", "Channel that records muscles (default: the only one).")


@group(
    "muscle",
    "ropewalk ledger muscle publish tally.json --evidence evidence.json --reducer tally:fold",
    "ropewalk ledger muscle ls",
)
def muscle() -> None:
    """Publish programs (muscles) with the versions of envelopes they support.

    A version is not deprecated or disabled while an active muscle supports no other.
    """


@muscle.command(
    "publish",
    "ropewalk ledger evidence provenance --payload tally.json --key ci \\",
    "    --builder https://builder.example/v1 --build-type https://builder.example/muscle -o evidence.json",
    "ropewalk ledger muscle publish tally.json --evidence evidence.json --channel ops",
)
@click.argument("file")
@channel_choice
@option("--evidence", "F", "Evidence that is bound to the manifest (default: its member evidence).")
@option(
    "--reducer",
    "R",
    "Program of the compatibility test: a built-in reducer or module:function.",
    default="counts",
)
def publish(file: str, channel: str | None, evidence: str | None, reducer: str) -> None:
    """Verify the evidence of a muscle, test it with every version it supports, and record it in the channel.

    FILE is a manifest: {"version":1,"name","muscle_version","min_version":"1.0.x","max_version":"1.1.x"}, with the
    member "evidence" unless --evidence is given. The evidence is bound to the manifest without that member, and must
    not be older than `ledger evidence set --max-age` allows.
    """
    from ropewalk.ledger.versions.muscles import MANIFEST_BYTES_MAX, parse_muscle
    from ropewalk.ledger.versions.publish import publish_muscle

    found, proof = parse_muscle(parse_input(file, jcs.parse, limit=MANIFEST_BYTES_MAX))
    if evidence is not None:
        given: Any = parse_input(evidence, jcs.parse, limit=MANIFEST_BYTES_MAX)
        if not isinstance(given, dict) or proof is not None:
            raise Invalid(f"{evidence}: evidence must be one object, in the manifest or in a separate file")
        proof = given
    channel = only_channel(channel)
    receipt, tested = publish_muscle(
        here().home,
        channel,
        found,
        proof,
        channel_keys(channel),
        named_reducer(reducer),
        wait_s=WRITER_WAIT_S,
        watch=partial(progress, label=channel),
    )
    said = f"{found.name} {found.muscle_version}  tested with {', '.join(tested['roots'])}"
    emit(
        {"channel": channel, "muscle": found.to_json(), "tested": tested, **receipt.to_json()},
        f"ok  {said}  sealed in {channel} at height {receipt.height}",
    )


@muscle.command("ls", "ropewalk ledger muscle ls --json")
@option("--channel", "C", "List only this channel (default: all).")
def ls(channel: str | None) -> None:
    """List the active muscles."""
    from ropewalk.ledger.channel.settings import channels, read_settings
    from ropewalk.ledger.versions.muscles import active_muscles

    home = here().home
    if channel is not None:
        read_settings(home, channel)
    rows = [
        {"channel": name, "height": height, **each.to_json()}
        for name in ([channel] if channel is not None else channels(home))
        for each, height in active_muscles(home, name).values()
    ]
    lines = (
        f"{row['name']} {row['muscle_version']}  {row['min_version']} to {row['max_version']}  {row['channel']}"
        for row in rows
    )
    emit({"muscles": rows}, lines, "no muscles")


@muscle.command("retire", "ropewalk ledger muscle retire tally --channel ops")
@click.argument("name")
@channel_choice
def retire(name: str, channel: str | None) -> None:
    """Record that a muscle is no longer used; it then keeps no version alive."""
    from ropewalk.ledger.versions.publish import retire_muscle

    channel = only_channel(channel)
    receipt, found = retire_muscle(here().home, channel, name, channel_keys(channel), wait_s=WRITER_WAIT_S)
    emit(
        {"channel": channel, "muscle": found.to_json(), **receipt.to_json()},
        f"ok  {name} {found.muscle_version}  retired, sealed in {channel} at height {receipt.height}",
    )
