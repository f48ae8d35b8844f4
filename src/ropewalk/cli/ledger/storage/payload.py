"""`ropewalk ledger payload`: show and erase detached payloads."""

from __future__ import annotations

import time

import click

from ropewalk.cli.common.command import emit, group, write_result
from ropewalk.cli.common.locations import here
from ropewalk.cli.common.options import option, required
from ropewalk.cli.ledger.channel import channel_key, now_text, open_sealing


@group(
    "payload",
    "ropewalk ledger envelope --channel audit --domain ops --class Observation --type t \\",
    "    --payload body.json --key ada --keep -o one.json",
    "ropewalk ledger payload show 56b512d0…",
    "ropewalk ledger payload erase 56b512d0… --channel audit --reason 'art. 17'",
)
def payload() -> None:
    """Show and erase detached payloads stored by `ledger envelope --keep`."""


@payload.command("show", "ropewalk ledger payload show 56b512d0… -o body.json")
@click.argument("payload_hash")
@option("-o --output", "F", "Output file (default: stdout).", default="-")
def show(payload_hash: str, output: str) -> None:
    """Print a payload after checking its hash. For an erased payload, print when and why, and exit 3."""
    from ropewalk.ledger.channel.payloads import PayloadStore

    raw = PayloadStore(here().home / "payloads").get(payload_hash)
    answer = {"payload_hash": payload_hash, "bytes": len(raw), "path": output}
    write_result(output, raw, answer, f"ok  {len(raw)}  {output}")


@payload.command("erase", "ropewalk ledger payload erase 56b512d0… --channel audit --reason 'art. 17'")
@click.argument("payload_hash")
@required("--channel", "C", "Channel to record the erasure in.")
@option("--reason", "TEXT", "Reason to record permanently; do not include private data.", default="")
def erase(payload_hash: str, channel: str, reason: str) -> None:
    """Erase a payload. Its hash, envelope and proofs stay; a tombstone records when and why.

    The tombstone is also appended to the channel, as an event of the type ledger.tombstone.
    """
    from ropewalk.ledger.channel.channel import current_policy
    from ropewalk.ledger.channel.payloads import PayloadStore, PayloadTombstone
    from ropewalk.ledger.envelope.envelope import build
    from ropewalk.ledger.rules.rules import judge
    from ropewalk.ledger.rules.verdict import Context
    from ropewalk.ledger.versions.lifecycle import version_to_write

    home = here().home
    policy = current_policy(home, channel)
    key = channel_key(channel)
    store = PayloadStore(home / "payloads")
    stone = store.erased(payload_hash) or PayloadTombstone(payload_hash, now_text(), reason)
    event = build(  # for an existing tombstone the same event again: it gives the first receipt
        key,
        domain=channel,
        event_class="Observation",
        event_type="ledger.tombstone",
        payload=stone.to_json(),
        timestamp=stone.erased_at,
        protocol_version=version_to_write(home, policy, time.time_ns()),
    )
    judge(event, Context(policy=policy)).require()  # before anything is erased
    with open_sealing(channel) as opened:
        store.erase(payload_hash, at=stone.erased_at, reason=stone.reason)
        receipt = opened.log.submit(event.raw)
    emit(
        {**stone.to_json(), **receipt.to_json(), "channel": channel},
        f"ok  erased {payload_hash}  {channel} {receipt.height}/{receipt.index}",
    )
