"""`ropewalk ledger`: append, read and prove signed envelopes in sealed blocks."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from typing import Any, cast

import click

from ropewalk.cli.common.command import (
    MARKS,
    emit,
    emit_line,
    group,
    parse_input,
    progress,
    say,
    session,
    write_output,
)
from ropewalk.cli.common.locations import NODE_KEY, here, signing_key
from ropewalk.cli.common.options import channel_option, choice, flag, integer, option, repeated, required
from ropewalk.cli.common.verdict import allow_partly_option, end_with_report, verdict_name
from ropewalk.cli.ledger.channel import find_parent, now_text, read_channel, version_for
from ropewalk.errors import NotFound, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.report import Report
from ropewalk.kernel.terminal_text import printable

CLASSES = ("Command", "Observation", "Result", "Alert", "Attestation", "CapabilityAdvertisement")
LEVELS = ("public", "internal", "confidential", "restricted")
DENIED = 6

SECTIONS = {
    "Channels": ("create", "ls", "head", "status", "read", "verify", "policy"),
    "Envelopes": ("envelope", "append", "adapt", "payload"),
    "Proofs": (
        "prove",
        "consistency",
        "receipt",
        "tiles",
        "witness",
        "timestamp",
        "trust",
        "replay",
        "state",
    ),
    "Keys": ("key", "promote"),
    "Evidence": ("evidence",),
    "Storage": ("archive", "retain", "restore", "pack", "reindex", "repair"),
    "Remote": ("serve", "send", "pull", "mailbox", "enclave"),
    "Lifecycle": ("lifecycle", "muscle"),
}


@group(
    "ledger",
    "ropewalk ledger create --channel audit",
    "ropewalk ledger envelope --channel audit --domain ops --class Observation --type disk.full \\",
    "    --payload event.json --key ada | ropewalk ledger append --channel audit --file -",
    "ropewalk ledger verify --deep",
    sections=SECTIONS,
    lazy={
        "append": "ledger.append:append Append envelopes: check them and seal them into blocks.",
        "send": "ledger.remote.remote:send Append envelopes to a channel on a server.",
        "pull": "ledger.remote.remote:pull Copy a channel from a server, and verify it.",
        "serve": "ledger.remote.remote:serve Serve channels to remote clients.",
        "mailbox": "ledger.remote.mailbox:mailbox Serve a channel to local processes through shared memory.",
        "enclave": "ledger.remote.enclave:enclave Seal envelopes for an attested enclave, and open them there.",
        "payload": "ledger.storage.payload:payload Show and erase detached payloads.",
        "policy": "ledger.policy:policy Show, check, hash and rotate policies.",
        "evidence": "ledger.evidence:evidence Set the trusted evidence of a channel; wrap and check evidence.",
        "key": "ledger.key:key Rotate, retire, revoke and destroy signing keys of channels.",
        "muscle": "ledger.muscle:muscle Publish programs with the versions they support.",
        "promote": "ledger.key:promote Make this verified copy of a channel its writer, under a new epoch.",
        "lifecycle": "ledger.lifecycle:lifecycle Show and change the accepted versions of envelopes.",
        "prove": "ledger.publish:prove Write the inclusion proof of an envelope.",
        "consistency": "ledger.publish:consistency Write the proof that a newer head extends an older one.",
        "status": "ledger.storage.status:status Show the state of every channel.",
        "reindex": "ledger.storage.status:reindex Rebuild the index from the log.",
        "repair": "ledger.storage.repair:repair Show the damage of a channel, and repair it.",
        "adapt": "ledger.adapt:adapt Convert an envelope of a newer version.",
        "replay": "ledger.storage.replay:replay Fold a channel into a state, and print its root.",
        "state": "ledger.storage.replay:state Prove single members of a replayed state.",
        "receipt": "ledger.publish:receipt Write a receipt for other tools (COSE, C2SP).",
        "witness": "ledger.witness:witness Set the witnesses of a channel, and ask them to cosign its head.",
        "timestamp": "ledger.publish:timestamp Have an authority sign the time of a file (RFC 3161).",
        "head": "ledger.publish:head Print the head of a channel.",
        "tiles": "ledger.publish:tiles Publish the headers as a C2SP tiled log.",
        "archive": "ledger.storage.archive:archive Write old blocks to write-once storage.",
        "retain": "ledger.storage.archive:retain Archive old blocks, and drop them here.",
        "pack": "ledger.storage.archive:pack Compress old segments in place.",
        "restore": "ledger.storage.archive:restore Rebuild a channel from archives, or rehearse that.",
    },
)
def ledger() -> None:
    """Append, read and prove signed envelopes in channels of sealed, linked blocks."""


@ledger.command("create", "ropewalk ledger create --channel audit --policy strict.json")
@channel_option
@option("--key", "NAME", "Key that signs its blocks.", default=NODE_KEY)
@option("--policy", "F", "Policy bundle of the channel (default: none); see `ledger policy show`.")
def create(channel: str, key: str, policy: str | None) -> None:
    """Create a channel. Its key can be replaced later (`ledger key rotate`)."""
    from ropewalk.ledger.channel.settings import create_channel
    from ropewalk.ledger.rules.policy import parse_policy

    rules = parse_input(policy, parse_policy) if policy is not None else None
    made = create_channel(here().home, channel, key, signing_key(key).public, rules)
    emit(
        {
            "channel": channel,
            "key": key,
            "signer": made.signer.to_json(),
            "policy_hash": rules.hash.hex() if rules is not None else None,
        },
        f"ok  {channel}  sealed by {made.signer.did()}",
    )


@ledger.command("ls", "ropewalk ledger ls --json")
def ls() -> None:
    """List the channels."""
    from ropewalk.ledger.channel.settings import channels

    found = channels(here().home)
    emit({"channels": found}, found, "no channels; create one with `ropewalk ledger create`")


@ledger.command(
    "envelope",
    "ropewalk ledger envelope --channel audit --domain ops --class Command --type deploy \\",
    "    --payload - --key ada --correlation-id c-1 < body.json > envelope.json",
)
@channel_option
@required("--domain", "D", "Logical boundary, such as ea.core.")
@choice("--class event_class", CLASSES, "Event class.", required=True)
@required("--type event_type", "T", "Event type, such as disk.full.")
@required("--payload", "F", "Event body as JSON; `-` reads stdin.")
@required("--key", "NAME", "Author's signing key.")
@option("--correlation-id", "I", "Id that links a Result to its Command.")
@option("--parent", "ENVELOPE_ID", "Parent envelope in the channel (default for a Result: its Command).")
@option("--timestamp", "TIME", "Time in RFC 3339, UTC (default: now).")
@choice("--level", LEVELS, "Confidentiality level.")
@option("--key-ref", "REF", "Reference to the key that seals a confidential payload.")
@option("--enclave-ref", "REF", "With --level: enclave that may read the payload.")
@option("--detach", "URI", "Store only the hash and the location of the payload.")
@flag("--keep", "Detach the payload, and store it in this repository, where it can be erased.")
@option("--evidence", "F", "Attestation evidence as JSON.")
@option("--integrity-proof", "F", "Integrity proof as JSON.")
@option("--policy-tag", "F", "Policy tag as JSON.")
@option(
    "--protocol-version",
    "V",
    "Version of the envelope format (default: the oldest that the channel accepts now).",
)
@flag("--cbor", "Write deterministic CBOR; the id is the same.")
@option("-o --output", "F", "Output file (default: stdout).", default="-")
def envelope(channel: str, payload: str, key: str, parent: str | None, output: str, **options: Any) -> None:
    """Build, sign and print one envelope, without appending it."""
    from ropewalk.ledger.channel.payloads import PayloadStore
    from ropewalk.ledger.envelope.envelope import build, to_cbor

    if options["keep"] and options["detach"]:
        raise click.UsageError("--keep and --detach exclude each other")
    above = find_parent(channel, parent, options["event_class"], options["correlation_id"])
    body = parse_input(payload, jcs.parse)
    extras = {
        name: parse_input(options[name], jcs.parse) if options[name] is not None else None
        for name in ("evidence", "integrity_proof", "policy_tag")
    }
    tag = {"level": options["level"]} if options["level"] else None
    if tag is None and options["enclave_ref"]:
        raise click.UsageError("--enclave-ref needs --level")
    if tag is not None:
        tag |= {name: options[name] for name in ("key_ref", "enclave_ref") if options[name]}
    detached: dict[str, Any] | None = None
    if options["detach"]:
        detached = {"locator": options["detach"], "bytes": len(jcs.encode(body))}
    author = signing_key(key)
    if options["keep"]:
        kept = PayloadStore(here().home / "payloads").put(jcs.encode(body))
        detached = {"locator": f"urn:blake3:{kept}", "bytes": len(jcs.encode(body))}
    made = build(
        author,
        domain=options["domain"],
        event_class=options["event_class"],
        event_type=options["event_type"],
        payload=body,
        timestamp=options["timestamp"] or now_text(),
        correlation_id=options["correlation_id"],
        protocol_version=options["protocol_version"] or version_for(channel),
        parent=above,
        detached=detached,
        confidentiality=cast("dict[str, jcs.Json] | None", tag),
        **cast("dict[str, Any]", extras),
    )
    if options["cbor"]:
        write_output(output, to_cbor(made))
    else:
        write_output(output, made.raw + b"\n" if output == "-" else made.raw)
    if output != "-":
        emit({"envelope_id": made.hex_id, "path": output}, f"ok  {made.hex_id}  {output}")


@ledger.command(
    "read",
    "ropewalk ledger read --channel audit --from 0 --to 9 --json",
    "ropewalk ledger read --channel audit --cbor > audit.cbor",
)
@channel_option
@integer("--from start", "N", "First height to print.", default=0)
@integer("--to end", "N", "Last height to print (default: the head).")
@flag("--cbor", "Write the envelopes as a CBOR sequence (RFC 8742), and nothing else.")
def read(channel: str, start: int, end: int | None, cbor: bool) -> None:
    """Print blocks with their envelopes, oldest first.

    An envelope has the same id in both encodings: `ledger append` takes either.
    """
    from ropewalk.ledger.block.block import Block
    from ropewalk.ledger.envelope.envelope import parse_stored, to_cbor

    if cbor:
        with read_channel(channel) as reading:
            for block in reading.blocks(start, end):
                for raw in block.envelopes:
                    sys.stdout.buffer.write(to_cbor(parse_stored(raw)))
            sys.stdout.buffer.flush()
        return

    with read_channel(channel) as reading:
        as_json, first = session().json, True
        write = sys.stdout.write
        if as_json:
            write('{"blocks":[')
        try:
            for height, lines in reading.lines(start, end):
                block = Block.from_lines(lines)
                if as_json:  # streamed: a channel may be larger than memory
                    envelopes = ",".join(raw.decode() for raw in block.envelopes)
                    # The stored record is a JSON object with header, signature and signer.
                    record = block.record.raw[1:-1].decode()
                    head = f'"height":{height},"block_hash":"{block.hash.hex()}",{record}'
                    write(f'{"" if first else ","}{{{head},"envelopes":[{envelopes}]}}')
                else:
                    for index, raw in enumerate(block.envelopes):
                        one = parse_stored(raw)
                        kind = (
                            f"{one.event_class}  {printable(one.event_type)}"  # the author chooses the text
                        )
                        write(f"{height}/{index}  {one.timestamp}  {kind}  {one.hex_id}\n")
                first = False
        except RopewalkError as error:
            if not isinstance(error, NotFound) or not first or start == 0:
                if not as_json:
                    raise
                # Blocks were printed already: put the problem into the same JSON object.
                write(f"],{json.dumps(error.to_problem(), ensure_ascii=False)[1:]}\n")
                raise click.exceptions.Exit(error.exit_code) from error
        if as_json:
            write("]}\n")
        sys.stdout.flush()


@ledger.command("verify", "ropewalk ledger verify --channel audit --deep --json")
@option("--channel", "C", "Channel (default: all).")
@flag("--deep", "Also check every envelope, its evidence, and the index.")
@option("--trust", "F", "Trust file (default: the channel's own settings).")
@allow_partly_option
def verify(channel: str | None, deep: bool, trust: str | None, allow_partly: bool) -> None:
    """Verify stored blocks: checksums, hashes, signatures, links.

    With --deep also check every envelope against all eight rules, its evidence against the roots of the trust file, and
    every row of the index. Nothing is written. Exit 5 unless the verdict is `passed`.
    """
    from ropewalk.ledger.channel.maintenance import verify_stored
    from ropewalk.ledger.channel.settings import channels
    from ropewalk.ledger.proof.trust import parse_trust

    home = here().home
    pinned = parse_input(trust, parse_trust) if trust is not None else None
    answers: dict[str, Report] = {}
    for each in [channel] if channel is not None else channels(home):
        answers[each] = verify_stored(
            home, each, trust=pinned, deep=deep, watch=partial(progress, label=each)
        )
    if channel is None and not answers:
        raise NotFound("this repository has no channels", advice="Create one with `ropewalk ledger create`.")
    answers = {name: one.accept(partly=allow_partly) for name, one in answers.items()}
    whole = answers[channel] if channel is not None else _together(answers).accept(partly=allow_partly)
    end_with_report(whole, lambda: "\n".join(_lines(answers)))


def _together(answers: dict[str, Report]) -> Report:
    """Return one report over several channels; every step names its channel."""
    steps = [
        replace(step, fields={**step.fields, "channel": name})
        for name, one in answers.items()
        for step in one.steps
    ]
    counts = {key: sum(one.counts.get(key, 0) for one in answers.values()) for key in ("entries", "blocks")}
    return Report.of(steps, **counts)


def _lines(answers: dict[str, Report]) -> list[str]:
    out = []
    for name, one in answers.items():
        counts = ", ".join(f"{count} {noun}" for noun, count in one.counts.items())
        out.append(f"{verdict_name(one)}  {name}  {counts}")
        out += [
            f"  {MARKS[step.status]} {step.name}: {printable(step.detail) or step.status}"
            for step in one.steps
        ]
    return out


def _certificate(raw: bytes) -> str:
    from ropewalk.ledger.evidence.certificates import parse_pem

    text = raw.decode("ascii", "replace")
    parse_pem(text)
    return text


@ledger.command("trust", "ropewalk ledger trust --channel audit -o trust.json")
@channel_option
@option("-o --output", "F", "Output file (default: stdout).", default="-")
@repeated("--root roots", "PEM", "Root certificate for evidence; repeatable.")
@repeated(
    "--witness witnesses", "VKEY|F", "Trusted witness key, or a file with one key per line; repeatable."
)
@option("--revocations", "F", "Revoked keys: a JSON list of {key, since, reason}.")
@repeated("--name names", "DID=NAME", "What reports call a key; grants no trust; repeatable.")
def trust(
    channel: str,
    output: str,
    roots: tuple[str, ...],
    witnesses: tuple[str, ...],
    revocations: str | None,
    names: tuple[str, ...],
) -> None:
    """Write the trust file of a channel: the keys, policy and roots that a verifier must trust.

    The file holds keys in hex, reports name them as did:key; stderr shows both. The file may also hold did:keys.

    The trusted evidence of the channel (`ledger evidence set`) is included, and all signing keys with their dates.
    """
    from ropewalk.cli.common.note_keys import note_keys
    from ropewalk.ledger.evidence.settings import channel_trust
    from ropewalk.ledger.keys.revocations import parse_revocation_list
    from ropewalk.ledger.proof.trust import parse_trust

    known = channel_trust(here().home, channel)
    made = replace(
        known,
        roots=(*known.roots, *(parse_input(root, _certificate) for root in roots)),
        witnesses=note_keys(witnesses),
        revocations=parse_input(revocations, parse_revocation_list) if revocations is not None else (),
        names=dict(each.partition("=")[::2] for each in names),
    )
    made = parse_trust(made.to_bytes())
    write_output(output, made.to_bytes() + (b"\n" if output == "-" else b""))
    if output != "-" and session().json:
        emit_line({"path": output, "trust": json.loads(made.to_bytes()), "why": made.explain()})
        return
    for line in made.explain():
        say(f"trusts {line}")
    if output != "-":
        click.echo(f"ok  {output}")
