"""Ask the witnesses of a channel to cosign its head, all at once, and keep the newest head with enough cosignatures."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ropewalk.errors import Damaged, NotFound, RopewalkError, Unavailable
from ropewalk.kernel import merkle
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.key import Verifier
from ropewalk.kernel.note.note import claimed_head
from ropewalk.kernel.terminal_text import printable
from ropewalk.ledger.channel.channel import Channel
from ropewalk.ledger.channel.settings import write_file
from ropewalk.ledger.channel.witnessed import read_witness_policy, read_witnessed, witness_gate
from ropewalk.ledger.ingest.ticket import EnvelopeSink, LedgerReceipt
from ropewalk.ledger.proof.proof import head_signer, signed_head
from ropewalk.ledger.transparency.witness import WitnessRequest
from ropewalk.ledger.transparency.witness_policy import NOTE, cosignature_line, cosignatures, signature_lines
from ropewalk.net.http_post import HttpAnswer, post_bytes

WAIT_S: Final = 10.0
SIZE_TYPE: Final = "text/x.tlog.size"
FAILURE_MAX: Final = 300  # characters of what a witness answers that are shown
Send = Callable[[str, bytes], HttpAnswer]


def post_checkpoint(url: str, body: bytes) -> HttpAnswer:
    """POST an `add-checkpoint` request to a witness."""
    return post_bytes(f"{url}/add-checkpoint", body, {"Content-Type": "text/plain"}, timeout_s=WAIT_S)


def count_names(lines: Sequence[str]) -> int:
    """Return how many witnesses made these signature lines: two keys under one name are one witness."""
    return len({line.split(" ")[1] for line in lines})


@dataclass(frozen=True, slots=True)
class WitnessedHead:
    """A head with its cosignatures, and what each witness that gave none answered."""

    note: bytes
    size: int
    lines: tuple[str, ...]
    threshold: int
    failures: tuple[str, ...] = ()

    @property
    def is_enough(self) -> bool:
        """Whether the threshold is reached."""
        return count_names(self.lines) >= self.threshold

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that `ledger witness send` prints."""
        return {
            "size": self.size,
            "threshold": self.threshold,
            "cosignatures": list(self.lines),
            "checkpoint": self.note.decode(),
            "failures": list(self.failures),
        }

    def require(self) -> None:
        """Raise `Unavailable` unless enough witnesses have signed."""
        if not self.is_enough:
            raise Unavailable(
                f"{count_names(self.lines)} of {self.threshold} cosignatures on the head of {self.size} blocks: "
                f"{'; '.join(self.failures) or 'no answer'}",
                advice="The blocks are durable. Ask again with `ropewalk ledger witness send --channel C`.",
                cosignatures=list(self.lines),
            )


class WitnessClient:
    """Asks the witnesses of one channel. Keeps the header tree, so that a second head costs what is new."""

    def __init__(self, channel: Channel, key: SigningKey, *, send: Send = post_checkpoint) -> None:
        policy = read_witness_policy(channel.folder)
        if policy is None:
            raise NotFound(
                f"no witnesses are set for channel {channel.settings.channel}",
                advice="Set them with `ropewalk ledger witness set --channel C --witness URL=VKEY --threshold N`.",
            )
        self.policy = policy
        self._channel, self._key, self._send = channel, key, send
        self._log = head_signer(policy.host, channel.settings.channel, key).verifier
        self._tree = merkle.MerkleTree((), merkle.SHA256)

    def collect(self, *, wait_s: float = WAIT_S, all_of_them: bool = False) -> WitnessedHead:
        """Send the current head to every witness at once; return at the threshold, at the last answer or in time.

        With `all_of_them`, wait for more than the threshold. The head is kept on disk once it has enough cosignatures.
        """
        channel = self._channel
        channel.index.catch_up()
        size = channel.head().height
        if not size:
            raise NotFound(f"channel {channel.settings.channel} has no blocks yet")
        self._tree.extend(leaf for _, leaf in channel.index.tree_leaves(self._tree.size, size))
        known = self._known()
        channel.note_head(size, channel.index.block_hash(size - 1), "a signed head")
        note = signed_head(self.policy.host, channel.settings.channel, size, self._tree.root(), self._key)
        if known is not None and claimed_head(known)[0] == claimed_head(note)[0]:
            note = known  # the same head: keep the cosignatures it has
        found = self._ask(note, known, wait_s, all_of_them)
        if found.is_enough and found.note != known:
            write_file(channel.folder / NOTE, found.note)
        return found

    def catch_up(self) -> None:
        """Ask for the cosignatures that a fail-closed channel needs before its next block, if any are missing."""
        gate = witness_gate(self._channel.folder)
        try:
            if gate is not None:
                gate(self._channel.head().height)
        except Unavailable:
            self.collect()

    def _known(self) -> bytes | None:
        """Return the kept head if it is still one of this log and its key."""
        note = read_witnessed(self._channel.folder)
        try:
            return note if note is not None and cosignatures(note, self._log, self.policy.keys) else None
        except RopewalkError:  # another host, another key: begin anew
            return None

    def _ask(self, note: bytes, known: bytes | None, wait_s: float, all_of_them: bool) -> WitnessedHead:
        head, lines = claimed_head(note)
        have = {(line.name, line.key_id) for line in lines}
        before, signed = claimed_head(known) if known is not None else (head, ())
        sizes = {(line.name, line.key_id): before.size for line in signed}
        answers: queue.SimpleQueue[tuple[Verifier, bytes | RopewalkError]] = queue.SimpleQueue()

        def ask(url: str, vkey: Verifier) -> None:
            try:
                answers.put((vkey, self._cosign(note, url, vkey, sizes.get((vkey.name, vkey.key_id), 0))))
            except RopewalkError as error:
                answers.put((vkey, error))
            except Exception as error:
                answers.put((vkey, Unavailable(f"{type(error).__name__}: {error}")))

        left = {vkey: url for url, vkey in self.policy.witnesses if (vkey.name, vkey.key_id) not in have}
        for (
            vkey,
            url,
        ) in left.items():  # daemons: a witness that sends one byte a second must not keep us alive
            threading.Thread(target=ask, args=(url, vkey), daemon=True).start()
        deadline, failures, more = time.monotonic() + wait_s, [], b""
        while left and (all_of_them or count_names(self._lines(note + more)) < self.policy.threshold):
            try:
                vkey, answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                failures += [f"{vkey.name}: no answer within {wait_s:g} s" for vkey in left]
                break
            del left[vkey]
            if isinstance(answer, RopewalkError):
                failures.append(printable(f"{vkey.name}: {answer.detail}", FAILURE_MAX))
            else:
                more += answer
        enough = self._lines(note + more)
        return WitnessedHead(note + more, head.size, enough, self.policy.threshold, tuple(failures))

    def _lines(self, note: bytes) -> tuple[str, ...]:
        return signature_lines(note, self.policy.keys)

    def _cosign(self, note: bytes, url: str, vkey: Verifier, old: int) -> bytes:
        """Return the verified line of one witness; a witness that has seen another size is asked once more."""
        head = claimed_head(note)[0]
        for _ in range(2):
            path = self._tree.consistency(old, head.size) if 0 < old < head.size else ()
            answer = self._send(url, WitnessRequest(note, old, path).to_bytes())
            if answer.status == 200:
                return cosignature_line(note, answer.body, self._log, vkey)
            text = answer.body[:200].decode("ascii", "replace")
            if answer.status != 409 or answer.media_type != SIZE_TYPE or not text.strip().isdecimal():
                raise Unavailable(f"{answer.status} {' '.join(text.split())}")
            old = int(text)
            if old > head.size:
                raise Damaged(
                    f"it has cosigned {old} blocks, and the channel has only {head.size}", reason="witness"
                )
        raise Unavailable("another request is changing its state")


class WitnessedLog:
    """Takes envelopes as a channel does; each receipt comes with the cosignatures on the head over its block.

    Receipts come without them if too few witnesses answer; `missing` then has the reason.
    """

    def __init__(self, log: EnvelopeSink, client: WitnessClient) -> None:
        self.missing: Unavailable | None = None
        self._log, self._client = log, client

    def submit(self, raw: bytes) -> LedgerReceipt:
        """Submit one envelope; raise if it is rejected."""
        self._client.catch_up()
        return self._witnessed([self._log.submit(raw)])[0]

    def submit_many(self, raws: Sequence[bytes]) -> list[LedgerReceipt | RopewalkError]:
        """Submit several envelopes; return one outcome each, in order."""
        self._client.catch_up()
        outcomes = self._log.submit_many(raws)
        receipts = iter(self._witnessed([each for each in outcomes if isinstance(each, LedgerReceipt)]))
        return [next(receipts) if isinstance(each, LedgerReceipt) else each for each in outcomes]

    def _witnessed(self, receipts: Sequence[LedgerReceipt]) -> list[LedgerReceipt]:
        if not receipts:
            return []
        try:
            found = self._client.collect()
            found.require()
            return [replace(each, checkpoint=found.note, cosignatures=found.lines) for each in receipts]
        except Unavailable as error:
            self.missing = self.missing or error
            return [replace(each, cosignatures=()) for each in receipts]
