"""The JSON of the API, for the OpenAPI document. Answers are written from stored bytes, not from these."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class EventReceipt(Struct):
    """An event that is on disk."""

    ulid: str
    content_id: str
    commit: str
    ns: str
    replayed: bool


class MessageReceipt(Struct):
    """A message that is on disk."""

    ulid: str
    content_id: str
    commit: str
    topic: str
    replayed: bool


class StoredEvent(Struct):
    """An event with its place in the log."""

    ulid: str
    content_id: str
    commit: str
    envelope: dict[str, Any]


class EventList(Struct):
    """Events in order; `next_since` continues behind them."""

    events: list[StoredEvent]
    next_since: str | None


class ShownEvent(StoredEvent):
    """One event with everything the repository knows about it."""

    ns: str
    height: int
    trailer: dict[str, Any] | None
    author: str
    time: str
    note: str | None


class TailEvent(StoredEvent):
    """An event of one of several namespaces."""

    ns: str


class Tail(Struct):
    """The newest events of several namespaces."""

    events: list[TailEvent]
    watermarks: dict[str, str]
    next_since: str | None


class Hint(Struct):
    """The checkpoint that moves with a page."""

    group: str
    topic: str


class Message(Struct):
    """A message as S1 returns it; `canonical_json` is base64."""

    ulid: str
    commit: str
    content_id: str
    envelope_path: str
    canonical_json: str
    checkpoint_hint: Hint | None


class MessagePage(Struct):
    """The answer of `messages.read`."""

    messages: list[Message]
    next_since: str | None
    restarted: bool


class Consumer(Struct):
    """The position of a consumer group."""

    group: str
    ns: str
    ulid: str | None
    head_ulid: str | None
    behind: int | None


class Consumers(Struct):
    """All consumer groups."""

    consumers: list[Consumer]


class Checkpoint(Struct):
    """A checkpoint that was set."""

    ref: str
    ulid: str | None
    commit: str | None


class Channels(Struct):
    """The channels of the ledger."""

    channels: list[str]


class ChannelFacts(Struct):
    """A channel: head, key, policy, counts."""

    channel: str
    height: int | None
    block_hash: str | None
    envelopes: int
    key: str
    signer: dict[str, str]
    policy_hash: str | None


class StoredBlock(Struct):
    """A block with its envelopes."""

    height: int
    block_hash: str
    header: dict[str, Any]
    signature: dict[str, str]
    signer: dict[str, str]
    envelopes: list[dict[str, Any]]


class Blocks(Struct):
    """Blocks in order; `next_from` is the first height that is not among them, null at the head."""

    blocks: list[StoredBlock]
    next_from: int | None


class EnvelopeReceipt(Struct):
    """An envelope in a sealed, durable block."""

    envelope_id: str
    height: int
    index: int
    block_hash: str
    replayed: bool


class GossipTopics(Struct):
    """The gossip topics."""

    topics: list[str]


class GossipRow(Struct):
    """A signed message."""

    id: str
    clock: int
    parents: list[str]
    payload: Any
    author: str


class GossipPage(Struct):
    """Messages in the order they arrived here; `next_after` continues behind them."""

    messages: list[GossipRow]
    next_after: str | None


class GossipReceipt(Struct):
    """A message that was signed and stored."""

    id: str
    clock: int
    parents: list[str]


class GossipHeads(Struct):
    """The messages without children, and the clock of the next one."""

    heads: list[str]
    clock: int
    pending: int


class ReportStep(Struct):
    """One step of a verification."""

    name: str
    status: str
    detail: str


class VerifyReport(Struct):
    """A verification."""

    ok: bool
    verdict: str
    steps: list[ReportStep]
    entries: int


class Status(Struct):
    """Whether the server runs or is ready."""

    status: str
