"""Store messages inside one transaction: rules, then bytes, heads, tree and indexes, then pending children."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol

from ropewalk.errors import Damaged, TooLarge
from ropewalk.gossip.core import ancestors, pending
from ropewalk.gossip.core.access import Access, MissingParent, StoredHistory
from ropewalk.gossip.core.events import Committed, Event, MessageRefused, Stored
from ropewalk.gossip.core.ids import Key, MessageId, id_of
from ropewalk.gossip.core.message import GossipMessage, GossipSignature, SignedMessage, decode
from ropewalk.gossip.core.profiles import Profile
from ropewalk.gossip.core.table import Transaction, View
from ropewalk.gossip.core.tree import TreeWriter

Apply = Callable[[MessageId, GossipSignature, GossipMessage], Any]
_ARRIVALS = b"arrivals"  # the number of the last message that arrived
_INDEXED = b"indexed"  # the number of the last arrival in the ancestor index
_ADVICE = "`ropewalk gossip verify` shows what else is wrong; sync the topic anew from a peer."


@dataclass(frozen=True, slots=True)
class Rules:
    """What every message has to pass before it is stored, in this order."""

    validate: Callable[[Any], None]
    access: Access
    apply: Apply | None
    index_ancestors: bool
    pending: pending.PendingLimits
    now_s: Callable[[], int] | None = None


class Inserted(NamedTuple):
    """The outcome of an insert. `error` is why the message was refused, `missing` the parents it lacks.

    stored: in the log now. known: it was there. pending: it waits for parents. refused: by a rule. orphaned: its
    parents are missing and it was not to wait.
    """

    id: MessageId
    status: Literal["stored", "known", "pending", "refused", "orphaned"]
    result: Any = None
    missing: tuple[MessageId, ...] = ()
    error: Exception | None = None

    @property
    def pending(self) -> bool:
        """Return whether the message waits for its parents."""
        return self.status == "pending"


class Home(Protocol):
    """What a batch needs of its log."""

    topic: str
    profile: Profile
    tree_writer: TreeWriter
    frontiers: ancestors.FrontierCache

    @property
    def rules(self) -> Rules: ...

    def get(self, id: str) -> SignedMessage | None: ...

    def is_ancestor(self, id: str, ancestor: str) -> bool: ...


class Batch:
    """One transaction on a log. Nothing of a message is written before its rules have passed."""

    def __init__(self, change: Transaction, log: Home, peer: str | None = None) -> None:
        self.change = change
        self._peer = peer  # that pushed the messages, for its quota of pending ones
        self.events: list[Event] = []
        self._log = log
        self._order = log.profile.code.order
        self._leaves: list[tuple[bytes, bytes]] = []
        # Mostly nothing is pending, and then no children need be looked up.
        self._some_wait = change.count("pending") > 0
        self._arrived = counted(change).arrived

    def has(self, key: Key) -> bool:
        """Return whether the message is stored, before or in this transaction."""
        return self.change.get("messages", self._order(key)) is not None

    def parents(self, limit: int) -> tuple[Key, ...]:
        """Return the heads to append to; of more than a message may have, the newest, and the rest stay heads."""
        keys = [Key(key) for key, _ in self.change.scan("heads")]
        if not self._leaves:  # later ones are our own writes
            self._check_heads(keys)
        return tuple(keys if len(keys) <= limit else sorted(keys, key=self._order)[-limit:])

    def store(self, signed: SignedMessage) -> Stored:
        """Pass the rules, write the message, and release what waited for it; raises what a rule raises."""
        return self._keep(signed, self._judge(signed))

    def insert(self, signed: SignedMessage) -> Inserted:
        """Store a message of another peer, once; without its parents it waits. Raises what a rule raises."""
        outcome = self._unless_ready(signed)
        if outcome is not None:
            return self._wait(signed) if outcome.status == "orphaned" else outcome
        return Inserted(signed.id, "stored", self.store(signed).result)

    def insert_or_refuse(self, signed: SignedMessage) -> Inserted:
        """Insert, but take a refusal as an outcome: the other messages of the batch go on."""
        outcome = self.insert_or_orphan(signed)
        if outcome.status != "orphaned":
            return outcome
        try:
            return self._wait(signed)
        except TooLarge as error:
            # With what it lacks: it is not kept, so it has to be fetched again with its parents.
            return Inserted(signed.id, "refused", missing=outcome.missing, error=error)
        except Exception as error:
            return Inserted(signed.id, "refused", error=error)

    def insert_or_orphan(self, signed: SignedMessage) -> Inserted:
        """Insert as `insert_or_refuse`, but leave a message without its parents out: it does not wait."""
        outcome = self._unless_ready(signed)
        if outcome is not None:
            return outcome
        try:
            result = self._judge(signed)
        except Exception as error:
            return Inserted(signed.id, "refused", error=error)
        self._keep(signed, result)
        return Inserted(signed.id, "stored", result)

    def finish(self) -> None:
        """Bring tree and indexes in line with the messages; after this the transaction may be committed."""
        if not self._leaves:
            return
        if (stored := self.change.count("messages")) != self._arrived:
            raise Damaged(
                f"{stored} messages are stored, but {self._arrived} have arrived",
                reason="arrivals",
                advice=_ADVICE,
            )
        root = self._log.tree_writer.add(self.change, self._leaves)
        self.change.put("meta", _ARRIVALS, self._arrived.to_bytes(8, "big"))
        if self._log.rules.index_ancestors:
            index_arrivals(self.change, self._log)
        self.events.append(Committed(root))

    def _check_heads(self, keys: list[Key]) -> None:
        """Raise unless every head is stored and the newest message is one: a signature on others is final."""
        newest = next(self.change.scan("messages", reverse=True), (None,))[0]
        if newest is not None and newest not in map(self._order, keys):
            raise Damaged(
                f"the newest message of {self._log.topic} is not among the heads",
                reason="heads",
                advice=_ADVICE,
            )
        for key in keys:
            if not self.has(key):
                raise Damaged(f"head {id_of(key)} is no stored message", reason="heads", advice=_ADVICE)

    def _unless_ready(self, signed: SignedMessage) -> Inserted | None:
        if self.has(signed.key):
            return Inserted(signed.id, "known")
        missing = [parent for parent in signed.parent_keys if not self.has(parent)]
        if missing:
            return Inserted(signed.id, "orphaned", missing=tuple(map(id_of, missing)))
        if self._some_wait and pending.holds(self.change, signed.key):
            pending.drop(self.change, signed.key, signed.raw, signed.parent_keys)
        return None

    def _wait(self, signed: SignedMessage) -> Inserted:
        missing = [parent for parent in signed.parent_keys if not self.has(parent)]
        self._judge_early(signed)
        rules = self._log.rules
        pending.add(
            self.change,
            rules.pending,
            signed.key,
            signed.raw,
            missing,
            author=signed.signature.public_key,
            peer=self._peer,
            now_s=None if rules.now_s is None else rules.now_s(),
        )
        self._some_wait = True
        return Inserted(signed.id, "pending", missing=tuple(map(id_of, missing)))

    def _judge_early(self, signed: SignedMessage) -> None:
        """Ask the rules that need no missing parent; what they refuse does not wait."""
        rules = self._log.rules
        rules.validate(signed.message.payload)
        with contextlib.suppress(MissingParent):
            rules.access(StoredHistory(self._log), signed)

    def _judge(self, signed: SignedMessage) -> Any:
        """Ask the rules, before anything is written; the result is what `apply` returned."""
        rules = self._log.rules
        rules.validate(signed.message.payload)
        rules.access(self._log, signed)
        return None if rules.apply is None else rules.apply(signed.id, signed.signature, signed.message)

    def _keep(self, signed: SignedMessage, result: Any) -> Stored:
        stored = self._write(signed, result)
        self._release(signed.key)
        return stored

    def _write(self, signed: SignedMessage, result: Any) -> Stored:
        put = self.change.put
        put("messages", self._order(signed.key), signed.raw)
        for parent in signed.parent_keys:
            self.change.delete("heads", parent)
        put("heads", signed.key, b"")
        self._arrived += 1
        put("arrivals", self._arrived.to_bytes(8, "big"), signed.key)
        self._leaves.append((signed.key, signed.raw))
        stored = Stored(signed.id, signed.signature, signed.message, result)
        self.events.append(stored)
        return stored

    def _release(self, key: Key) -> None:
        """Store what waited for a message, depth first; a child that is refused does not hurt its parent."""
        todo = self._ready(key) if self._some_wait else []
        while todo:
            child = todo.pop()
            pending.drop(self.change, child.key, child.raw, child.parent_keys)
            try:
                result = self._judge(child)
            except Exception as error:
                self.events.append(MessageRefused(child.id, error))
                continue
            self._write(child, result)
            todo.extend(self._ready(child.key))

    def _ready(self, parent: Key) -> list[SignedMessage]:
        """Return the waiting children whose last missing parent this was, in reverse: the next to go is at the end."""
        found = []
        for _, raw in pending.ready(self.change, parent):
            child = decode(self._log.profile, self._log.topic, raw)
            if all(map(self.has, child.parent_keys)):
                found.append(child)
        return sorted(found, key=lambda child: self._order(child.key), reverse=True)


@dataclass(frozen=True, slots=True)
class Counted:
    """How many messages have arrived, and how many of them are in the ancestor index."""

    arrived: int
    indexed: int


def counted(view: View) -> Counted:
    """Return the counters of a log."""
    return Counted(*(int.from_bytes(view.get("meta", name) or b"", "big") for name in (_ARRIVALS, _INDEXED)))


def stored_message(view: View, profile: Profile, key: Key) -> bytes:
    """Return the message that the list of arrivals names."""
    raw = view.get("messages", profile.code.order(key))
    if raw is None:
        raise Damaged(
            f"message {id_of(key)} is in the list of arrivals and not in the log",
            reason="arrivals",
            advice=_ADVICE,
        )
    return raw


def index_arrivals(change: Transaction, log: Home, limit: int | None = None) -> bool:
    """Bring the ancestor index up to the last arrival, or `limit` messages further; whether it is there now.

    Parents arrive before children, so their links are there already.
    """
    last = counted(change).indexed
    rows = list(islice(change.scan("arrivals", (last + 1).to_bytes(8, "big")), limit))
    for _, key in rows:
        signed = decode(log.profile, log.topic, stored_message(change, log.profile, Key(key)))
        ancestors.index(change, log.profile, Key(key), signed.parent_keys, log.frontiers)
    if rows:
        change.put("meta", _INDEXED, rows[-1][0])
    return limit is None or len(rows) < limit
