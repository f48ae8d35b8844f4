"""The JSON of the API, for the OpenAPI document. Answers are written from stored bytes, not from these."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType


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


class StoredEvent(Struct, kw_only=True):
    """An event with its place in the log. `withheld`: the policy keeps a part of the payload from readers."""

    ulid: str
    content_id: str
    commit: str
    envelope: dict[str, Any]
    withheld: bool | UnsetType = UNSET


class EventList(Struct):
    """Events in order; `next_since` continues behind them."""

    events: list[StoredEvent]
    next_since: str | None


class ShownEvent(StoredEvent, kw_only=True):
    """One event with everything the repository knows about it."""

    ns: str
    height: int
    trailer: dict[str, Any] | None
    author: str
    time: str
    note: str | None


class TailEvent(StoredEvent, kw_only=True):
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
    """A message as S1 returns it; `canonical_json` is base64. `withheld` as for events."""

    ulid: str
    commit: str
    content_id: str
    envelope_path: str
    canonical_json: str
    checkpoint_hint: Hint | None
    withheld: bool | UnsetType = UNSET


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
    log: str


class Bridge(Struct):
    """A mirror, a broker bridge or a webhook. `lag` is null if the source is not a log on this machine.

    `position` is the last entry that was copied (a ULID, a block height, a position of the broker), or the hash of a
    gossip topic. `lost` counts
    messages that the broker removed before the bridge read them.
    """

    kind: str
    source: str
    target: str
    position: str | None
    lag: int | None
    moved: int
    lost: int
    run_ms: int | None
    error: str | None
    error_ms: int | None


class Bridges(Struct):
    """The bridges of the logs that the caller may read."""

    bridges: list[Bridge]


class Webhook(Struct):
    """A webhook without its secret: how far it is, what waits for another attempt, and its dead letters."""

    id: str
    url: str
    log: str
    format: str
    ordered: bool
    ulid: str
    retrying: int
    dead: int


class Webhooks(Struct):
    """The webhooks of the logs that the caller may read."""

    webhooks: list[Webhook]


class NewWebhook(Struct):
    """A webhook that was made. `secret` is answered only here, and only if the server chose it."""

    id: str
    url: str
    log: str
    format: str
    ordered: bool
    secret: str | None


class RemovedWebhook(Struct):
    """The id of a webhook that is gone."""

    removed: str


class ReplayedDeliveries(Struct):
    """The dead letters that are delivered again."""

    replayed: list[str]


class Delivery(Struct):
    """One attempt to deliver an event; `status` is null if there was no answer."""

    ulid: str
    attempt: int
    at_ms: int
    status: int | None
    detail: str


class WebhookRetry(Struct):
    """An event that is tried again."""

    ulid: str
    failed: int
    due_ms: int


class DeadLetter(Struct):
    """An event that is not tried again until it is replayed."""

    ulid: str
    attempts: int
    status: int | None
    detail: str


class Deliveries(Struct):
    """What became of the events of a webhook; attempts come newest first."""

    deliveries: list[Delivery]
    retries: list[WebhookRetry]
    dead: list[DeadLetter]


class Consumers(Struct):
    """All consumer groups."""

    consumers: list[Consumer]


class LagSample(Struct):
    """How many events a group was behind; null if it had not begun."""

    at_ms: int
    behind: int | None


class GroupLag(Struct):
    """The samples of a group in a log, oldest first; a time without change has two."""

    group: str
    log: str
    samples: list[LagSample]


class ConsumerLags(Struct):
    """Samples of all groups, and how often the server takes one."""

    every_s: float
    groups: list[GroupLag]


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


class ChannelPolicy(Struct):
    """The policy of a channel and its hash; both null if it has none."""

    policy_hash: str | None
    policy: dict[str, Any] | None


class QuarantinedPeer(Struct):
    """A ledger peer that gets no session until it shows fresh evidence or the right policy."""

    peer: str
    channel: str
    reason: str
    since_ns: int


class LedgerPeers(Struct):
    """Sessions over gRPC and QUIC, where they are served, and the peers in quarantine."""

    transports: dict[str, str]
    sessions: int
    quarantined: list[QuarantinedPeer]


class StoredBlock(Struct):
    """A block with its envelopes."""

    height: int
    block_hash: str
    header: dict[str, Any]
    signature: dict[str, str]
    signer: dict[str, str]
    envelopes: list[dict[str, Any]]
    envelope_ids: list[str]


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
    peers: list[dict[str, Any]]


class LogFacts(Struct):
    """A log at a glance; `rates` are entries in equal steps of the span, oldest first."""

    log: str
    entries: int
    head: str | None
    newest_ms: int | None
    rates: list[int]


class Caller(Struct):
    """The identity of the caller."""

    name: str
    known: bool
    rights: list[dict[str, Any]]


class Overview(Struct):
    """What the caller may see of the server."""

    version: str
    now_ms: int
    span_s: int
    identity: Caller
    guarded: bool
    warehouse: bool
    fault: str | None
    uptime_s: float
    alerts: list[dict[str, Any]]
    logs: list[LogFacts]


class HistoryEvent(StoredEvent, kw_only=True):
    """An event with its author, its trailer and the commits before it."""

    parents: list[str]
    height: int
    author: str
    trailer: dict[str, Any] | None


class History(Struct):
    """Events newest first; `next_before` continues below them, null at the first event."""

    events: list[HistoryEvent]
    next_before: str | None
    scanned: int


class Deployments(Struct):
    """Deployments newest first; `current` are the ULIDs of those in effect."""

    deployments: list[dict[str, Any]]
    current: list[str]


class WarehouseTable(Struct):
    """A table, and the heads of the logs up to which it was written."""

    name: str
    rows: int
    bytes: int
    heads: dict[str, str | None]


class WarehouseFacts(Struct):
    """The tables of a warehouse, its newest batches and runs."""

    tables: list[WarehouseTable]
    noted: list[str]
    batches: list[dict[str, Any]]
    runs: list[dict[str, Any]]


class SqlAnswer(Struct):
    """Columns and rows; `truncated` if there are more than the limit."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool


class ChannelKey(Struct):
    """A key of a channel and the blocks that it may sign."""

    key: dict[str, str]
    did: str
    above: int
    since_ns: int
    until_ns: int | None
    current: bool


class ChannelKeys(Struct):
    """The keys of a channel, first to last."""

    keys: list[ChannelKey]


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
