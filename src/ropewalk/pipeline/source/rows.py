"""Entries as rows and rows as columns: the same few columns for every engine. Pure: bytes and facts in, values out.

`payload` holds canonical JSON; `entry` holds the rest of the entry: the commit's author and trailer,
the block's header, the message's signature.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from ropewalk.errors import InvalidJson, RopewalkError
from ropewalk.gitlog.core.objects import Commit, GitSignature
from ropewalk.gitlog.verify.usual_events import UsualEvent
from ropewalk.gossip.core import dag_json
from ropewalk.gossip.core.message import SignedMessage
from ropewalk.kernel import jcs, ulid
from ropewalk.kernel.digest import DAG_CBOR, cid, cid_text
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.block.block import BlockRecord
from ropewalk.ledger.envelope.fields import parse_timestamp

Engine: TypeAlias = Literal["gitlog", "gossip", "ledger"]
Verdict: TypeAlias = Literal["passed", "failed", "not_checked"]
ENGINES: tuple[Engine, ...] = ("gitlog", "gossip", "ledger")
ROW_NAMES = {"time": "time_us", "payload_json": "payload"}  # of columns with another name in a row
YEARS_US = range(
    -62_135_596_800_000_000, 253_402_300_800_000_000
)  # 1 to 9999: what readers of tables can show


class GitEntry(NamedTuple):
    """What a row keeps of a commit; `trailer` is canonical JSON, `said` what it says."""

    ulid: str
    tree: str
    author: GitSignature
    committer: GitSignature
    trailer: bytes | None
    said: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """Return the column `entry`, canonical JSON."""
        trailer = b"" if self.trailer is None else b',"trailer":%s' % self.trailer
        people = _people(self.author, self.committer)
        return b'%s,"tree":"%s"%s,"ulid":"%s"}' % (people, self.tree.encode(), trailer, self.ulid.encode())


@lru_cache(256)
def _people(author: GitSignature, committer: GitSignature) -> bytes:
    names = (("author", author), ("committer", committer))
    said = {
        k: {
            "name": readable(p.name),
            "email": readable(p.mail),
            "time": p.time_s if abs(p.time_s) <= jcs.INTEGER_MAX else None,
        }
        for k, p in names
    }
    return jcs.encode(said)[:-1]


@lru_cache(256)
def readable(name: str) -> str:
    """Return a name of a commit as text; bytes that are no UTF-8 become U+FFFD.

    >>> readable("Zo\\udceb")
    'Zo\ufffd'
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@lru_cache(256)
def _author(author: GitSignature) -> str:
    return f"{readable(author.name)} <{readable(author.mail)}>"


def table_time(time_us: int) -> int | None:
    """Return a time as tables hold it: None beyond the years 1 to 9999. Git lets an author write any other.

    >>> table_time(0), table_time(10**18)
    (0, None)
    """
    return time_us if time_us in YEARS_US else None


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
    payload: bytes | None
    author: str | None
    verdict: Verdict
    detail: str | None
    block_height: int | None
    leaf_index: int | None
    proof: tuple[str, ...] | None
    position: int
    entry: dict[str, Any] | GitEntry | None
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
    """Return the row of a git event, from its envelope and, where it was read, its commit.

    >>> row = gitlog_row("demo", 0, "ab" * 20, "blake3:00", (), {"ulid": "01HF4Y9Q1SM8Q7K9DK2R4V5CXD", "type": "t",
    ...                  "payload": {"id": 7}}, None, None, "not_checked")
    >>> row.type, row.payload, row.time_us
    ('t', b'{"id":7}', 1699899300921000)
    """
    entry = None
    if commit is not None:
        said = None if trailer is None else jcs.encode_foreign(trailer)
        entry = GitEntry(document["ulid"], commit.tree, commit.author, commit.committer, said, trailer or {})
    return Row(
        "gitlog",
        topic,
        oid,
        content_id,
        parents,
        height,
        table_time(ulid.time_ms(document["ulid"]) * 1_000),
        str(document.get("type")),
        None if (payload := document.get("payload")) is None else jcs.encode_foreign(payload),
        None if commit is None else _author(commit.author),
        verdict,
        detail,
        None,
        None,
        None,
        height,
        entry,
    )


def usual_row(topic: str, height: int, oid: str, below: str, event: UsualEvent) -> Row:
    """Return the row of a git event that was proven in bulk; the same as `gitlog_row` returns for it."""
    document, name = event.document, event.ulid
    entry = GitEntry(name, event.tree, event.author, event.committer, event.trailer, event.shape)
    return Row(
        "gitlog",
        topic,
        oid,
        event.content_id,
        (below,),
        height,
        _time_us(name[:10]),
        document["type"],
        _payload(document, event.raw),
        _author(event.author),
        "passed",
        None,
        None,
        None,
        None,
        height,
        entry,
    )


@lru_cache(256)
def _time_us(digits: str) -> int | None:
    return table_time(ulid.time_ms(ulid.Ulid(digits + "0" * 16)) * 1_000)


def _payload(document: dict[str, Any], raw: bytes) -> bytes:
    """Return the payload of a canonical envelope: where it has four members, what is between the others."""
    if len(document) != 4:
        return jcs.encode_foreign(document["payload"])
    kind = document["type"]
    size = len(kind) + 2 if kind.isascii() and kind.isalnum() else len(jcs.encode(kind))
    # {"ns":"…","payload":…,"type":…,"ulid":"…"}: a namespace needs no escapes, a ULID has 26 digits
    return raw[len(document["ns"]) + 19 : -(size + 45)]


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
    """Return the row of an envelope. Only the first envelope of a block carries the block's header in `entry`."""
    header = record.header
    return Row(
        "ledger",
        topic,
        header.hash.hex(),
        envelope_id.hex(),
        (header.prev_block_hash.hex(),) if header.height else (),
        header.height,
        time_us(value.get("timestamp")),
        value.get("event_type"),
        json_bytes(value.get("payload")),
        ledger_author(value),
        verdict,
        detail,
        header.height,
        index,
        proof,
        header.height,
        block_entry(record) if index == 0 else None,
    )


def block_entry(record: BlockRecord) -> dict[str, Any]:
    """Return a block without its envelopes: the header and the signer."""
    return {**record.header.to_json(), "signer": record.signer.did()}


def gossip_row(signed: SignedMessage, position: int, verdict: Verdict) -> Row:
    """Return the row of a gossip message at its position in the order of arrival; it has neither a time nor a type."""
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
        json_bytes(dag_json.to_json(message.payload)),
        signed.signature.public_key,
        verdict,
        None,
        None,
        None,
        None,
        position,
        {"signature": signed.signature.signature.hex(), "codec": signed.signature.codec},
    )


def entry_bytes(entry: dict[str, Any] | GitEntry | None) -> bytes | None:
    """Return the column `entry` of a row."""
    return entry.to_bytes() if isinstance(entry, GitEntry) else json_bytes(entry)


def json_bytes(value: Any) -> bytes | None:
    """Return a value as canonical JSON, None for no value.

    >>> json_bytes({"b": 1, "a": None}), json_bytes(None)
    (b'{"a":null,"b":1}', None)
    """
    if value is None:
        return None
    try:
        return jcs.encode(value)
    except InvalidJson:  # numbers that only other formats can hold, as DAG-CBOR: exact, if not canonical
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Columns:
    """Some rows, column by column: lists, or Arrow arrays where the reader built them. `keep` selects rows."""

    count: int
    values: dict[str, Any]
    keep: Sequence[bool] | None = None


def columns_of(rows: Sequence[Row]) -> Columns:
    """Return rows as columns.

    >>> columns_of([broken_row("gitlog", "prod", 3, "lost")]).values["detail"]
    ('lost',)
    """
    return Columns(len(rows), dict(zip(Row._fields, zip(*rows, strict=True), strict=True)))


def broken_row(
    engine: Engine,
    topic: str,
    position: int,
    detail: str,
    *,
    entry_id: str | None = None,
    content_id: str | None = None,
    height: int | None = None,
) -> Row:
    """Return the row of an entry that cannot be read: its position and the reason."""
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
        "failed",
        detail,
        height if engine == "ledger" else None,
        None,
        None,
        position,
        None,
    )


@lru_cache(4096)  # a batch of envelopes often has one time
def time_us(text: object) -> int | None:
    """Return the microseconds of an envelope's time, None if it is none."""
    try:
        return parse_timestamp(text) // 1_000 if isinstance(text, str) else None
    except RopewalkError:
        return None  # the verdict names the fault


def ledger_author(value: dict[str, Any]) -> str | None:
    """Return the did:key of the author of an envelope, None if it has no readable key."""
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
