"""Channels of the ledger over HTTP."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, TypeVar
from weakref import WeakSet

from litestar import Response, Router, get, post
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream

from ropewalk.errors import Conflict, InvalidDigest, NotFound, RangeExceeded, RopewalkError, Unavailable
from ropewalk.kernel import cbor, jcs
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.bundle.files import export_bundle
from ropewalk.ledger.channel.channel import Channel, open_channel
from ropewalk.ledger.channel.settings import channels
from ropewalk.ledger.envelope.model import envelope_id as id_of_envelope
from ropewalk.ledger.evidence.settings import channel_trust
from ropewalk.ledger.proof.proof import signed_head, verify_proof
from ropewalk.server.http import models
from ropewalk.server.http.replies import (
    ITEMS_MAX,
    JSON,
    Asked,
    body_of,
    count_appends,
    identity_of,
    keyed_alone,
    node_of,
    not_modified,
    parse_items,
    permitted,
    receipts,
    remember,
    reply,
)
from ropewalk.server.node import NODE_KEY, ServerNode

CBOR = "application/cbor"
BLOCKS_MAX = 512  # of one page
BLOCK_BYTES = 4 << 20  # after which a page ends
CHUNK_BYTES = 1 << 18
BUNDLES_OPEN_MAX = 16
LEFTOVER_AGE_MIN_S = 86_400.0
# Bundles being sent; one that no response holds any more is closed.
_OPEN: WeakSet[BufferedReader] = WeakSet()
T = TypeVar("T")
From = Annotated[int, QueryParameter(name="from", description="First height.", ge=0)]
To = Annotated[int | None, QueryParameter(name="to", description="Last height; default: the head.", ge=0)]


@get("/channels")
async def list_channels(request: Asked) -> Response[models.Channels]:
    """List the channels."""
    node, identity = node_of(request), identity_of(request)
    found = await node.read(channels, node.place.home)
    return reply({"channels": [each for each in found if identity.may("read", f"ledger/{each}")]})


@get("/peers")
async def list_peers(request: Asked) -> Response[models.LedgerPeers]:
    """List the gRPC and QUIC peers in quarantine, of the channels that the caller may read."""
    node, identity = node_of(request), identity_of(request)
    served = node.transports
    held = served.quarantine.peers if served is not None else {}
    rows = [{"peer": peer, **asdict(each)} for peer, each in held.items()]
    return reply(
        {
            "transports": served.urls if served is not None else {},
            "sessions": len(served.sessions) if served is not None else 0,
            "quarantined": [row for row in rows if identity.may("read", f"ledger/{row['channel']}")],
        }
    )


@get("/channels/{channel:str}")
async def show_channel(request: Asked, channel: FromPath[str]) -> Response[models.ChannelFacts]:
    """Show a channel: head, key, policy and counts."""

    def look(reading: Channel) -> dict[str, Any]:
        head, settings, key_history = reading.head(), reading.settings, reading.key_history()
        empty, policy = head.height == 0, key_history.policies.current
        return {
            "channel": channel,
            "height": None if empty else head.height - 1,
            "block_hash": None if empty else head.block_hash.hex(),
            "envelopes": head.envelopes,
            "key": settings.key,
            "signer": key_history.current.key.to_json(),
            "policy_hash": policy.hash.hex() if policy is not None else None,
        }

    facts = await _with_channel(request, channel, look)
    etag = facts["block_hash"] or "empty"
    return not_modified(request, etag) or reply(facts, etag=etag)


@get("/channels/{channel:str}/policy")
async def show_policy(request: Asked, channel: FromPath[str]) -> Response[models.ChannelPolicy]:
    """Show the policy that is in force in a channel, with its rules and the schemas of payloads."""

    def look(reading: Channel) -> dict[str, Any]:
        policy = reading.key_history().policies.current
        if policy is None:
            return {"policy_hash": None, "policy": None}
        return {"policy_hash": policy.hash.hex(), "policy": jcs.parse(policy.to_bytes())}

    return reply(await _with_channel(request, channel, look))


@get("/channels/{channel:str}/blocks")
async def read_blocks(
    request: Asked, channel: FromPath[str], start: From = 0, end: To = None
) -> Response[models.Blocks]:
    """Read blocks with their envelopes, oldest first; `next_from` continues behind them."""

    def look(reading: Channel) -> bytes:
        height = reading.head().height
        last = min(height - 1, start + BLOCKS_MAX - 1, end if end is not None else height)
        rows: list[bytes] = []
        size, at = 0, start
        for found, lines in reading.lines(start, last) if start <= last else ():
            block = Block.from_lines(lines)
            rows.append(_block_bytes(found, block))
            size, at = size + len(rows[-1]), found + 1
            if size >= BLOCK_BYTES:
                break
        more = at < height and (end is None or at <= end)
        return b'{"blocks":[%s],"next_from":%s}' % (b",".join(rows), b"%d" % at if more else b"null")

    return reply(await _with_channel(request, channel, look))


def _block_bytes(height: int, block: Block) -> bytes:
    return b'{"height":%d,"block_hash":"%s",%s,"envelopes":[%s],"envelope_ids":[%s]}' % (
        height,
        block.hash.hex().encode(),
        block.record.raw[1:-1],  # a JSON object with header, signature and signer
        b",".join(block.envelopes),
        b",".join(b'"%s"' % id_of_envelope(raw).hex().encode() for raw in block.envelopes),
    )


@post("/channels/{channel:str}/envelopes", status_code=201)
async def append_envelopes(request: Asked, channel: FromPath[str]) -> Response[models.EnvelopeReceipt]:
    """Append an envelope, or an array of them, as JSON or CBOR. The answer comes when the block is on disk."""
    node = permitted(request, "append", f"ledger/{channel}")
    raw = await body_of(request, JSON, CBOR)
    is_cbor = request.headers.get("content-type", "").strip().lower().startswith(CBOR)
    async with keyed_alone(request, raw) as key:
        if key is not None and key.outcomes is not None:
            return receipts(key.outcomes, _is_array(raw, is_cbor), {})
        raws, many = await node.read(_envelopes, raw, is_cbor)
        outcomes = await node.submit(channel, raws)
        count_appends(request, "ledger", outcomes)
        rows = [each.to_problem() if isinstance(each, RopewalkError) else each.to_json() for each in outcomes]
        await remember(request, key, rows)
    return receipts(rows, many, {})


def _is_array(raw: bytes, is_cbor: bool) -> bool:
    if is_cbor:
        return not raw or raw[0] >> 5 == 4  # the major type of arrays
    return raw.lstrip().startswith(b"[")


def _envelopes(raw: bytes, is_cbor: bool) -> tuple[Sequence[bytes], bool]:
    """Return the envelopes of a body as the ledger takes them; a single one keeps its bytes."""
    if not _is_array(raw, is_cbor):
        return [raw], False
    if is_cbor:
        items: Any = cbor.decode(raw)
        if not 0 < len(items) <= ITEMS_MAX:
            raise RangeExceeded(f"an array must have 1 to {ITEMS_MAX} items, got {len(items)}")
        return [cbor.encode(each) for each in items], True
    items, _ = parse_items(raw)
    return [jcs.encode(each) for each in items], True


@get("/channels/{channel:str}/envelopes/{envelope_id:str}")
async def show_envelope(
    request: Asked, channel: FromPath[str], envelope_id: FromPath[str]
) -> Response[dict[str, Any]]:
    """Return one envelope, its exact canonical bytes."""
    raw = await _with_channel(request, channel, lambda it: it.envelope(_id(envelope_id)).raw)
    known = not_modified(request, envelope_id, immutable=True)
    return known or reply(raw, etag=envelope_id, immutable=True)


@get("/channels/{channel:str}/envelopes/{envelope_id:str}/proof")
async def prove_envelope(
    request: Asked, channel: FromPath[str], envelope_id: FromPath[str]
) -> Response[dict[str, Any]]:
    """Return the proof that an envelope is in its block: the file that `ledger prove` writes."""
    return reply(await _with_channel(request, channel, lambda it: it.prove(_id(envelope_id)).to_bytes()))


@get("/channels/{channel:str}/envelopes/{envelope_id:str}/verdict")
async def judge_envelope(
    request: Asked, channel: FromPath[str], envelope_id: FromPath[str]
) -> Response[models.VerifyReport]:
    """Verify one envelope with the trust of its channel: hashes, signatures, path, signer, policy and evidence."""

    def look(reading: Channel) -> dict[str, Any]:
        trust = channel_trust(node_of(request).place.home, channel)
        return verify_proof(reading.prove(_id(envelope_id)), trust).to_json()

    return reply(await _with_channel(request, channel, look))


@get("/channels/{channel:str}/keys")
async def list_keys(request: Asked, channel: FromPath[str]) -> Response[models.ChannelKeys]:
    """List the keys of a channel with the blocks and times in which they may sign."""

    def look(reading: Channel) -> list[dict[str, Any]]:
        keys = reading.key_history()
        return [
            {
                "key": each.key.to_json(),
                "did": each.key.did(),
                "above": each.above,
                "since_ns": each.since_ns,
                "until_ns": each.until_ns,
                "current": each.key == keys.current.key,
            }
            for each in keys.validities
        ]

    return reply({"keys": await _with_channel(request, channel, look)})


@get("/channels/{channel:str}/trust")
async def show_trust(request: Asked, channel: FromPath[str]) -> Response[dict[str, Any]]:
    """Return the trust file of a channel: what a verifier must believe."""
    node = permitted(request, "read", f"ledger/{channel}")
    trust = await node.read(channel_trust, node.place.home, channel)
    return reply(trust.to_bytes())


@get("/channels/{channel:str}/checkpoint", media_type="text/plain")
async def show_checkpoint(
    request: Asked, channel: FromPath[str], host: FromQuery[str] = "localhost"
) -> Response[str]:
    """Return the signed head over the headers, a C2SP note."""

    def sign(reading: Channel) -> bytes:
        size, root = reading.header_head()
        if size:
            reading.note_head(size, reading.index.block_hash(size - 1), "a signed head")
        return signed_head(host, channel, size, root, _signer(node_of(request), channel))

    note: Any = await _with_channel(request, channel, sign)
    return Response(note, media_type="text/plain; charset=utf-8", headers={"Cache-Control": "no-store"})


@get("/channels/{channel:str}/bundle", media_type="application/zstd")
async def export_range(request: Asked, channel: FromPath[str], start: From = 0, end: To = None) -> Stream:
    """Stream a bundle of blocks: the file that `bundle export` writes."""
    node = permitted(request, "read", f"ledger/{channel}")
    if len(_OPEN) >= BUNDLES_OPEN_MAX:
        raise Unavailable(
            f"{len(_OPEN)} bundles are being sent already", advice="Send it again after Retry-After."
        )
    stream = await node.read_long(_export, node, channel, start, end)
    _OPEN.add(stream)
    name = f'attachment; filename="{channel}-{start}.tar.zst"'
    return Stream(
        partial(_file, node, stream), media_type="application/zstd", headers={"Content-Disposition": name}
    )


def _export(node: ServerNode, channel: str, start: int, end: int | None) -> BufferedReader:
    """Write a bundle and return it, open; it has no name any more, so that it goes with the last reader."""
    folder = node.place.home / "server" / "bundles"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in folder.iterdir():  # of a server that was killed
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > LEFTOVER_AGE_MIN_S:
                shutil.rmtree(old)
    with tempfile.TemporaryDirectory(dir=folder) as made, open_channel(node.place.home, channel) as reading:
        height = reading.head().height
        if height == 0:
            raise NotFound(f"channel {channel} has no blocks yet", channel=channel)
        path = Path(made) / "bundle.tar.zst"
        export_bundle(reading, _signer(node, channel), start, end if end is not None else height - 1, path)
        return path.open("rb")


async def _file(node: ServerNode, stream: BufferedReader) -> AsyncIterator[bytes]:
    with stream:
        try:
            while chunk := await node.read(stream.read, CHUNK_BYTES):
                yield chunk
        finally:
            _OPEN.discard(stream)


async def _with_channel(request: Asked, channel: str, act: Callable[[Channel], T]) -> T:
    """Return what `act` finds in a channel that the caller may read."""
    node = permitted(request, "read", f"ledger/{channel}")

    def look() -> T:
        with open_channel(node.place.home, channel) as reading:
            return act(reading)

    return await node.read(look)


def _id(text: str) -> bytes:
    raw = hash_from_hex(text)
    if raw is None:
        raise InvalidDigest(f"an envelope id must be 64 lowercase hex digits, got {text[:80]!r}")
    return raw


def _signer(node: ServerNode, channel: str) -> SigningKey:
    try:
        return node.channel_keys(channel)[0]
    except (Conflict, NotFound):  # a copy: the keys of the channel are in another repository
        return node.signing_key(NODE_KEY)


ROUTES = Router(
    "/",
    route_handlers=[
        list_channels,
        list_peers,
        show_channel,
        show_policy,
        read_blocks,
        append_envelopes,
        show_envelope,
        prove_envelope,
        judge_envelope,
        list_keys,
        show_trust,
        show_checkpoint,
        export_range,
    ],
    tags=["ledger"],
)
