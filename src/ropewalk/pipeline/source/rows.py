"""An entry as a row: the same few columns for every engine. Pure: bytes and facts in, values out.

The value of `payload` is the parsed JSON; `entry` holds what the entry says besides its event: the commit's author and
trailer, the block's header, the message's signature.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from ropewalk.errors import RopewalkError
from ropewalk.gitlog.core.objects import Commit
from ropewalk.gossip.core import dag_json
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.kernel import ulid
from ropewalk.kernel.digest import DAG_CBOR, cid, cid_text
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.block.block import BlockRecord
from ropewalk.ledger.envelope.fields import parse_timestamp

Engine: TypeAlias = Literal["gitlog", "gossip", "ledger"]
Verdict: TypeAlias = Literal["passed", "failed", "not_checked"]
ENGINES: tuple[Engine, ...] = ("gitlog", "gossip", "ledger")


class Row(NamedTuple):
    """One event. `time_us` are microseconds since the epoch; `position` is the entry's number in its log."""

    engine: Engine
    topic: str
    entry_id: str | None
    content_id: str | None
    parents: tuple[str, ...]
    height: int | None
    time_us: int | None
    type: str | None
    payload: Any
    author: str | None
    verdict: Verdict
    detail: str | None
    block_height: int | None
    leaf_index: int | None
    proof: tuple[str, ...] | None
    position: int
    entry: dict[str, Any] | None
    notes: bytes | None = None


def gitlog_row(
    topic: str,
    height: int,
    oid: str,
    content_id: str,
    parents: tuple[str, ...],
    document: dict[str, Any],
    commit: Commit | None,
    trailer: dict[str, Any] | None,
    verdict: Verdict,
    detail: str | None = None,
) -> Row:
    """An event of a git log, from its envelope and, where it was read, its commit.

    >>> row = gitlog_row("demo", 0, "ab" * 20, "blake3:00", (), {"ulid": "01HF4Y9Q1SM8Q7K9DK2R4V5CXD", "type": "t",
    ...                  "payload": {"id": 7}}, None, None, "not_checked")
    >>> row.type, row.payload, row.time_us
    ('t', {'id': 7}, 1699899300921000)
    """
    author = None if commit is None else f"{commit.author.name} <{commit.author.mail}>"
    entry: dict[str, Any] | None = None
    if commit is not None:
        entry = {
            "ulid": document.get("ulid"),
            "tree": commit.tree,
            "author": {"name": commit.author.name, "email": commit.author.mail, "time": commit.author.time_s},
            "committer": {
                "name": commit.committer.name,
                "email": commit.committer.mail,
                "time": commit.committer.time_s,
            },
        }
        if trailer is not None:
            entry["trailer"] = trailer
    return Row(
        "gitlog",
        topic,
        oid,
        content_id,
        parents,
        height,
        ulid.time_ms(document["ulid"]) * 1_000,
        str(document.get("type")),
        document.get("payload"),
        author,
        verdict,
        detail,
        None,
        None,
        None,
        height,
        entry,
    )


def ledger_row(
    topic: str,
    record: BlockRecord,
    value: dict[str, Any],
    envelope_id: bytes,
    index: int,
    proof: tuple[str, ...] | None,
    verdict: Verdict,
    detail: str | None = None,
) -> Row:
    """An envelope of a ledger block. The block's header stands in `entry` of its first envelope only."""
    header = record.header
    entry: dict[str, Any] | None = None
    if index == 0:
        entry = {**header.to_json(), "signer": record.signer.did()}
    return Row(
        "ledger",
        topic,
        header.hash.hex(),
        envelope_id.hex(),
        (header.prev_block_hash.hex(),) if header.height else (),
        header.height,
        _time_us(value.get("timestamp")),
        value.get("event_type"),
        value.get("payload"),
        _ledger_author(value),
        verdict,
        detail,
        header.height,
        index,
        proof,
        header.height,
        entry,
    )


def gossip_row(signed: SignedMessage, position: int, verdict: Verdict, detail: str | None = None) -> Row:
    """A message of a gossip log, at its place in the order of arrival. It has neither a time nor a type."""
    message = signed.message
    return Row(
        "gossip",
        message.topic,
        signed.id,
        cid_text(cid(DAG_CBOR, signed.raw)),
        message.parents,
        message.clock,
        None,
        None,
        dag_json.to_json(message.payload),
        signed.signature.public_key,
        verdict,
        detail,
        None,
        None,
        None,
        position,
        {"signature": signed.signature.signature.hex(), "codec": signed.signature.codec},
    )


def broken_row(
    engine: Engine,
    topic: str,
    position: int,
    detail: str,
    *,
    entry_id: str | None = None,
    content_id: str | None = None,
    height: int | None = None,
    verdict: Verdict = "failed",
) -> Row:
    """What is left of an entry that cannot be read: its place, and why."""
    return Row(
        engine,
        topic,
        entry_id,
        content_id,
        (),
        height,
        None,
        None,
        None,
        None,
        verdict,
        detail,
        height if engine == "ledger" else None,
        None,
        None,
        position,
        None,
    )


def _time_us(text: object) -> int | None:
    try:
        return parse_timestamp(text) // 1_000 if isinstance(text, str) else None
    except RopewalkError:
        return None  # the verdict says what is wrong with it; a row needs no second opinion


def _ledger_author(value: dict[str, Any]) -> str | None:
    identity, signature = value.get("origin_identity"), value.get("signature")
    if not isinstance(identity, dict) or not isinstance(signature, dict):
        return None
    kind = identity.get("identity_type")
    alg = signature.get("alg") if kind == "attested-domain" else kind
    return _did(str(alg), str(identity.get("public_key")))


@lru_cache(4096)
def _did(alg: str, text: str) -> str | None:
    try:
        return PublicKey.from_text(alg, text).did()
    except RopewalkError:
        return None
