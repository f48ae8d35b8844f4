"""`ropewalk ledger witness`: the witnesses of a channel, and cosignatures on its head."""

from __future__ import annotations

import click

from ropewalk.cli.common.command import emit, group, say
from ropewalk.cli.common.options import channel_option, choice, flag, integer, repeated
from ropewalk.cli.ledger.channel import channel_key, read_channel
from ropewalk.cli.ledger.publish import host_option, warn_default_host
from ropewalk.kernel import jcs
from ropewalk.kernel.terminal_text import printable


@group(
    "witness",
    "ropewalk ledger witness set --channel audit --host log.example.org \\",
    "    --witness https://witness.example.net=witness.example.net+1a2b3c4d+BAID… --threshold 1",
    "ropewalk ledger witness send --channel audit",
    "ropewalk ledger witness show --channel audit",
)
def witness() -> None:
    """Set the witnesses of a channel, and ask them to cosign its head (C2SP tlog-witness)."""


@witness.command(
    "set",
    "ropewalk ledger witness set --channel audit --host log.example.org \\",
    "    --witness https://w1.example=w1.example+1a2b3c4d+BAID… \\",
    "    --witness https://w2.example=w2.example+5e6f7a8b+BAID… --threshold 2 --fail closed",
    "ropewalk ledger witness set --channel audit --none",
)
@channel_option
@host_option
@repeated("--witness pairs", "URL=VKEY", "A witness: its address and key; repeatable.")
@integer("--threshold", "N", "Cosignatures needed (default: all).", least=1)
@choice(
    "--fail",
    ["open", "closed"],
    "Without witnesses: open appends on, closed refuses blocks beyond --max-unwitnessed.",
    default="open",
)
@integer(
    "--max-unwitnessed",
    "N",
    "With --fail closed: blocks that may wait for cosignatures.",
    least=1,
    default=100,
)
@flag("--none drop", "Remove the witnesses of the channel.")
def set_(
    channel: str,
    host: str,
    pairs: tuple[str, ...],
    threshold: int | None,
    fail: str,
    max_unwitnessed: int,
    drop: bool,
) -> None:
    """Set the witnesses of a channel. Give the printed vkey of the log to each of them (`witness add`).

    All are asked at once; a head is witnessed with N cosignatures of different names and keys.
    """
    from ropewalk.cli.common.note_keys import note_key
    from ropewalk.ledger.channel.settings import write_file
    from ropewalk.ledger.proof.proof import head_signer
    from ropewalk.ledger.transparency.witness_policy import SETTINGS, WitnessPolicy, distinct_witnesses
    from ropewalk.net.http_post import check_url

    if drop == bool(pairs):
        raise click.UsageError("give --witness URL=VKEY, or --none")
    with read_channel(channel) as reading:
        path = reading.folder / SETTINGS
    if drop:
        path.unlink(missing_ok=True)
        emit({"channel": channel, "witnesses": []}, f"ok  {channel}  no witnesses")
        return
    named = []
    for pair in pairs:
        url, equals, vkey = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--witness must be URL=VKEY, got {printable(pair, 80)!r}")
        named.append((check_url(url), note_key(vkey)))
    vkey = head_signer(host, channel, channel_key(channel)).verifier.to_text()
    many = len(distinct_witnesses(key for _, key in named))
    policy = WitnessPolicy(
        host, tuple(named), threshold or many, max_unwitnessed if fail == "closed" else None
    )
    write_file(path, jcs.encode(policy.to_json()))
    warn_default_host(host, channel)
    emit(
        {"channel": channel, **policy.to_json(), "vkey": vkey},
        f"ok  {channel}  {policy.threshold} of {many} witnesses, fail {fail}\n"
        f"each witness needs the vkey {vkey}",
    )


@witness.command("show", "ropewalk ledger witness show --channel audit --json")
@channel_option
def show(channel: str) -> None:
    """Show the witnesses of a channel, and the newest head with enough cosignatures."""
    from ropewalk.ledger.channel.witnessed import read_witness_policy, read_witnessed

    with read_channel(channel) as reading:
        policy, note = read_witness_policy(reading.folder), read_witnessed(reading.folder)
        height = reading.head().height
    size = 0 if policy is None else policy.covered(note)
    answer = {
        "channel": channel,
        "policy": None if policy is None else policy.to_json(),
        "height": height,
        "witnessed": size,
        "unwitnessed": height - size,
        "checkpoint": None if note is None else note.decode(),
    }
    if policy is None:
        emit(answer, f"{channel}  no witnesses are set")
        return
    lines = [f"{channel}  {size} of {height} blocks witnessed, threshold {policy.threshold}"]
    lines += [f"  {url}  {vkey.to_text()}" for url, vkey in policy.witnesses]
    emit(answer, "\n".join(map(printable, lines)))


@witness.command("send", "ropewalk ledger witness send --channel audit")
@channel_option
def send(channel: str) -> None:
    """Send the head of the channel to all its witnesses now. Exit 7 unless enough of them cosign.

    `ropewalk watch` and `ropewalk serve` do this in the background.
    """
    from ropewalk.ledger.transparency.witnessing import WitnessClient

    with read_channel(channel) as reading:
        found = WitnessClient(reading, channel_key(channel)).collect(all_of_them=True)
    for failure in found.failures:
        say(failure)
    found.require()
    names = ", ".join(line.split(" ")[1] for line in found.lines)
    emit(
        {"channel": channel, **found.to_json()},
        f"ok  {channel}  {found.size} blocks, {len(found.lines)} cosignatures: {printable(names)}",
    )
