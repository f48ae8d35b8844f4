"""The log: a signed graph that grows at its heads, stored with its tree and its indexes in one transaction.

Writing happens in `ropewalk.gossip.core.writing`; this module is what an application holds. The log does no I/O of its
own: it works on any `TableStore`, and every byte it keeps is in there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, NewType, Self, TypeVar

from ropewalk.errors import Conflict, DigestMismatch, Invalid, InvalidKey, NotFound, Usage
from ropewalk.gossip.core import ancestors, pending
from ropewalk.gossip.core.access import Access, everybody_may_append
from ropewalk.gossip.core.callbacks import strict_access, strict_apply
from ropewalk.gossip.core.events import Event, Listener, Listeners, Stored, Synced, record_sync
from ropewalk.gossip.core.ids import Key, MessageId, ProfileName, id_of, key_of
from ropewalk.gossip.core.message import (
    GossipMessage,
    GossipSignature,
    Payload,
    Result,
    SignedMessage,
    assemble,
    check_topic,
    decode,
    next_clock,
    sign,
    verify,
)
from ropewalk.gossip.core.profiles import PARENTS_MAX, Profile, SignatureCodec
from ropewalk.gossip.core.table import TableStore, Transaction, View, settle_profile
from ropewalk.gossip.core.tree import TreeWriter, root_of
from ropewalk.gossip.core.validate import Validate, validator
from ropewalk.gossip.core.writing import Apply, Batch, Inserted, Rules, index_arrivals, stored_message
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.prolly.node import Node

INDEX_STEP = 10_000  # messages indexed in one transaction
Cursor = NewType("Cursor", str)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of an iteration."""

    id: MessageId
    inclusive: bool = True


class GossipLog(Generic[Payload, Result]):
    """One topic's messages on one peer. `Payload` is what messages carry, `Result` what `apply` returns.

    `apply` sees every message once before it is stored; what it raises keeps the message out. `validate` and
    `access` are asked before it; a coroutine is an error here (`ropewalk.gossip.open` runs them). `now_s` is the
    clock by which messages that wait for parents expire; without it they do not. Opening reads a few rows of a
    log of any size; with `replay` it applies every stored message again.
    """

    def __init__(
        self,
        table: TableStore,
        topic: str,
        *,
        profile: ProfileName | None = None,
        signer: SigningKey | None = None,
        apply: Apply | None = None,
        validate: Validate | None = None,
        access: Access = everybody_may_append,
        index_ancestors: bool = False,
        replay: bool = False,
        pending_limits: pending.PendingLimits = pending.PendingLimits(),  # noqa: B008 - frozen
        now_s: Callable[[], int] | None = None,
    ) -> None:
        self.table = table
        self.profile: Profile = settle_profile(table, topic, profile)
        self.topic = check_topic(self.profile, topic)
        self.signer = signer
        self.tree_writer = TreeWriter()
        self.frontiers = ancestors.FrontierCache()
        self._rules = Rules(
            validator(validate),
            strict_access(access),
            strict_apply(apply),
            index_ancestors,
            pending_limits,
            now_s,
        )
        self._listeners = Listeners()
        # The transaction this thread is in, so that `apply` reads what its own batch wrote.
        self._open = threading.local()
        if replay:
            self.replay()

    # Reading

    @contextmanager
    def view(self) -> Iterator[View]:
        """Return a view of the log as of now; inside `apply`, the transaction itself."""
        current: Transaction | None = getattr(self._open, "change", None)
        if current is not None:
            yield current
        else:
            with self.table.read() as view:
                yield view

    def __len__(self) -> int:
        with self.view() as view:
            return view.count("messages")

    def has(self, id: str) -> bool:
        """Return whether the message is stored."""
        with self.view() as view:
            return view.get("messages", self.profile.code.order(key_of(id))) is not None

    def get(self, id: str) -> SignedMessage | None:
        """Return a stored message, or None."""
        with self.view() as view:
            order = self.profile.code.order(key_of(id))
            raw = view.get("messages", order)
        return None if raw is None else self.read_stored(order, raw)

    def iterate(
        self, lower: Bound | None = None, upper: Bound | None = None, *, reverse: bool = False
    ) -> Iterator[SignedMessage]:
        """Yield the messages between two bounds by clock, then by hash: every message after its parents."""
        start, stop = self._range(lower, upper)
        with self.view() as view:
            for order, raw in view.scan("messages", start, stop, reverse):
                yield self.read_stored(order, raw)

    def arrivals(self, after: Cursor | None = None) -> Iterator[tuple[Cursor, SignedMessage]]:
        """Yield the messages in the order they reached this peer, after a cursor.

        A late message sorts low by clock but arrives last, so a reader with this cursor never misses one.
        """
        with self.view() as view:
            for seq, key in view.scan("arrivals", _after_cursor(after)):
                raw = stored_message(view, self.profile, Key(key))
                order = self.profile.code.order(Key(key))
                yield _cursor(int.from_bytes(seq, "big")), self.read_stored(order, raw)

    def version(self) -> int:
        """Return a number that changes with every commit, also of another process; cheap enough to poll."""
        return self.table.version()

    def last_arrival(self) -> Cursor | None:
        """Return the cursor of the newest arrival; reading after it yields only later messages."""
        with self.view() as view:
            for seq, _ in view.scan("arrivals", reverse=True):
                return _cursor(int.from_bytes(seq, "big"))
        return None

    def heads(self) -> list[MessageId]:
        """Return the messages without children, by clock and then by hash."""
        return [id_of(key) for key in self._head_keys()]

    def get_clock(self) -> tuple[int, list[MessageId]]:
        """Return the clock of the next appended message, and its parents."""
        keys = self._head_keys()
        return next_clock(self.profile, tuple(keys)), [id_of(key) for key in keys]

    def root(self) -> Node:
        """Return the root of the tree over all messages: equal roots mean equal logs."""
        with self.view() as view:
            return root_of(view)

    def pending(self) -> list[tuple[MessageId, list[MessageId]]]:
        """Return the messages that wait, each with the parents it waits for."""
        with self.view() as view:
            missing = pending.missing(view)
        return [(id_of(key), [id_of(parent) for parent in parents]) for key, parents in missing.items()]

    def get_ancestors(self, id: str, clock: int) -> list[MessageId]:
        """Return the frontier of a message's history at a clock, by clock and then by hash."""
        with self._indexed(id) as view:
            return [id_of(key) for key in ancestors.ancestors(view, self.profile, key_of(id), clock)]

    def is_ancestor(self, id: str, ancestor: str) -> bool:
        """Return whether one message is in the history of another; a message counts as its own ancestor."""
        with self._indexed(id, ancestor) as view:
            return ancestors.is_ancestor(view, self.profile, key_of(id), key_of(ancestor))

    # Writing

    def append(
        self, payload: Payload, *, signer: SigningKey | None = None, codec: SignatureCodec = "dag-cbor"
    ) -> Stored[Payload, Result]:
        """Make, sign, apply and store a message on top of all heads."""
        return self.append_many([payload], signer=signer, codec=codec)[0]

    def append_many(
        self,
        payloads: Iterable[Payload],
        *,
        signer: SigningKey | None = None,
        codec: SignatureCodec = "dag-cbor",
    ) -> list[Stored[Payload, Result]]:
        """Append several payloads, each on top of the one before, durable together or not at all."""
        key = signer or self.signer
        if key is None:
            raise InvalidKey(
                f"no key to sign a message of {self.topic} with",
                advice="Open the log with signer=…, or name one.",
            )
        wanted = list(payloads)

        def body(batch: Batch) -> list[Stored[Payload, Result]]:
            stored = []
            for payload in wanted:
                signed = sign(self.profile, key, self.topic, batch.parents(PARENTS_MAX), payload, codec)
                stored.append(batch.store(signed))
            return stored

        return self._transact(body)

    def insert(self, raw: bytes | GossipSignature, message: GossipMessage | None = None) -> Inserted:
        """Store a message of another peer; it waits if parents are missing.

        It is given in its binary form, or as signature and message (S3 § Inserting existing messages).
        """
        if isinstance(raw, GossipSignature) and isinstance(message, GossipMessage):
            return self.insert_signed(raw, message)
        if not isinstance(raw, bytes | bytearray | memoryview) or message is not None:
            kinds = (GossipSignature, GossipMessage)
            given = ", ".join(
                next((kind.__name__ for kind in kinds if isinstance(each, kind)), type(each).__name__)
                for each in (raw, message)
                if each is not None
            )
            raise Usage(
                f"insert takes the bytes of a message, or a GossipSignature and a GossipMessage; got {given}",
                advice="Call insert(raw) or insert(signature, message).",
            )
        signed = self.decode(bytes(raw))
        if self.has(signed.id):
            return Inserted(signed.id, "known")
        verify(self.profile, signed)
        return self._transact(lambda batch: batch.insert(signed))

    def insert_signed(self, signature: GossipSignature, message: GossipMessage) -> Inserted:
        """Store a message of another peer, given as signature and message (S3 § Inserting existing messages)."""
        if message.topic != self.topic:
            raise Invalid(f"the message belongs to topic {message.topic!r}, not to {self.topic!r}")
        return self.insert(assemble(self.profile, signature, message).raw)

    def insert_many(self, raws: Iterable[bytes]) -> list[Inserted]:
        """Store many messages in one transaction. Nothing is stored if one is malformed or its signature is bad.

        A message that is refused does not hold up the others: its outcome carries the error. So does that of one
        that would have to wait for its parents where no more may wait. Parents may come after children.
        """
        return self.insert_checked([self.check(raw) for raw in raws])

    def check(self, raw: bytes) -> SignedMessage:
        """Decode a message and verify its signature; raise if anything is wrong."""
        signed = self.decode(raw)
        verify(self.profile, signed)
        return signed

    def insert_checked(
        self,
        messages: Sequence[SignedMessage],
        *,
        peer: str | None = None,
        relay: Callable[[list[SignedMessage]], None] | None = None,
    ) -> list[Inserted]:
        """Store messages that `check` returned, in one transaction; return the outcomes in the same order.

        `peer` names the address that pushed them, whose quota of pending messages they count against. `relay` gets
        those that passed the rules before they are durable, and gets them again if the transaction is repeated.
        """
        # By clock, so that parents come first: a message must not wait for one of the same batch.
        order = self.profile.code.order

        def body(batch: Batch) -> list[Inserted]:
            by_clock = sorted(range(len(messages)), key=lambda at: order(messages[at].key))
            outcomes = {at: batch.insert_or_refuse(messages[at]) for at in by_clock}
            if relay is not None:
                relay([messages[at] for at in by_clock if outcomes[at].status == "stored"])
            return [outcomes[at] for at in range(len(messages))]

        return self._transact(body, peer)

    def insert_grounded(self, messages: Sequence[SignedMessage]) -> list[Inserted]:
        """Insert as `insert_checked`, for a source that promises parents first: what lacks them is left out."""
        return self._transact(lambda batch: [batch.insert_or_orphan(signed) for signed in messages])

    def decode(self, raw: bytes) -> SignedMessage:
        """Read a message of this topic in its one canonical form; the signature is not checked."""
        return decode(self.profile, self.topic, raw)

    def read_stored(self, order: bytes, raw: bytes) -> SignedMessage:
        """Read a stored message; raise `DigestMismatch` unless it is the one that belongs under its key."""
        signed = self.decode(raw)
        if self.profile.code.order(signed.key) != order:
            raise DigestMismatch(
                f"message {signed.id} is stored under key {order.hex()}", expected=order.hex(), got=signed.id
            )
        return signed

    def drop_pending(self, ids: Iterable[str] | None = None, *, older_than_s: int | None = None) -> int:
        """Forget messages that wait for parents: these, those that have waited so long, or all; return how many."""
        keys = None if ids is None else [key_of(id) for id in ids]

        def body(batch: Batch) -> int:
            if keys is not None:
                return pending.drop_all(batch.change, keys)
            if older_than_s is not None:
                if self._rules.now_s is None:
                    raise Usage(
                        "this log has no clock to tell how long messages wait", advice="Open it with now_s."
                    )
                return pending.expire(batch.change, self._rules.now_s() - older_than_s + 1)
            return pending.drop_all(batch.change, list(pending.missing(batch.change)))

        return self._transact(body)

    def replay(self) -> int:
        """Call `apply` for every stored message again, parents first; returns how many there were."""
        count = 0
        for signed in self.iterate():
            if self._rules.apply is not None:
                self._rules.apply(signed.id, signed.signature, signed.message)
            count += 1
        return count

    def on(self, listener: Listener, kind: type[Event] | None = None) -> Callable[[], None]:
        """Call `listener` after each event, of one kind or of all; the returned function ends it."""
        return self._listeners.add(listener, kind)

    def note_sync(self, peer: str, received: int) -> Synced:
        """Return the event of a sync that ended; one that brought messages is kept for other processes to see."""
        event = Synced(peer, received, self.root())
        if received:
            self.table.transact(lambda change: record_sync(change, event))
        return event

    def tell(self, event: Event) -> None:
        """Pass an event on to the listeners."""
        self._listeners.tell(event)

    def close(self) -> None:
        """Close the tables."""
        self.table.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside

    def _transact(self, act: Callable[[Batch], T], peer: str | None = None) -> T:
        if getattr(self._open, "change", None) is not None:
            raise Conflict(
                "the log cannot be written from inside apply", advice="Write after apply has returned."
            )

        def body(change: Transaction) -> tuple[T, Batch]:
            batch = Batch(change, self, peer)
            self._open.change = change
            try:
                result = act(batch)
                batch.finish()
            finally:
                self._open.change = None
            return result, batch

        result, batch = self.table.transact(body)
        for event in batch.events:
            self._listeners.tell(event)
        return result

    @property
    def rules(self) -> Rules:
        """The rules that every message has to pass."""
        return self._rules

    def _head_keys(self) -> list[Key]:
        with self.view() as view:
            return sorted((Key(key) for key, _ in view.scan("heads")), key=self.profile.code.order)

    def _range(self, lower: Bound | None, upper: Bound | None) -> tuple[bytes, bytes | None]:
        # Order keys of one profile have one length, so a zero byte more is the very next key.
        order = self.profile.code.order
        start = b"" if lower is None else order(key_of(lower.id)) + (b"" if lower.inclusive else b"\0")
        stop = None if upper is None else order(key_of(upper.id)) + (b"\0" if upper.inclusive else b"")
        return start, stop

    @contextmanager
    def _indexed(self, *ids: str) -> Iterator[View]:
        """Yield a view in which these messages are in the ancestor index; update the index where it lags."""
        keys = [key_of(id) for id in ids]
        with self.view() as view:
            for key in keys:
                if view.get("messages", self.profile.code.order(key)) is None:
                    raise NotFound(f"no message {id_of(key)} in {self.topic}", id=id_of(key))
            if all(view.get("ancestors", key) is not None for key in keys):
                yield view
                return
        current: Transaction | None = getattr(self._open, "change", None)
        if current is not None:
            index_arrivals(current, self)
        else:
            # In steps, so that a long log does not become one long transaction.
            while not self.table.transact(lambda change: index_arrivals(change, self, INDEX_STEP)):
                pass
        with self.view() as view:
            yield view


def _cursor(seq: int) -> Cursor:
    return Cursor(f"arrival:{seq}")


def _after_cursor(cursor: Cursor | None) -> bytes:
    if cursor is None:
        return b""
    kind, _, number = cursor.partition(":")
    if kind != "arrival" or not number.isascii() or not number.isdigit() or len(number) > 18:
        raise Invalid(f"{cursor[:40]!r} is not a cursor of a gossip log")
    return (int(number) + 1).to_bytes(8, "big")
