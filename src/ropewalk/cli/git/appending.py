"""Record events for `shiplog append` and `messages publish`: one, or one per line, and print each result."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import answer_line, fail, parse_input, reading_input, say, session
from ropewalk.cli.common.suggest import describe_new
from ropewalk.cli.git.events import receipt_line
from ropewalk.errors import RopewalkError, locate
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.gitlog.core.envelope import Draft
    from ropewalk.gitlog.core.layout import Layout
    from ropewalk.gitlog.core.planning import Receipt
    from ropewalk.gitlog.privacy.rules import PrivacyOutcome
    from ropewalk.gitlog.repository.repository import GitRepository

JSONL_BATCH = 1_000  # lines that may share one pack; fewer if the input is slower than the disk


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded event: receipt, what the privacy rules changed, and a message if it created its log."""

    receipt: Receipt
    changed: PrivacyOutcome | None
    made: str | None

    def to_json(self, member: str) -> dict[str, Any]:
        """Return the `--json` form; `member` is the JSON key for the name of the log."""
        receipt = self.receipt
        answer: dict[str, Any] = {
            "ulid": receipt.ulid,
            "content_id": receipt.content_id,
            "commit": receipt.commit,
            member: receipt.topic,
            "replayed": receipt.replayed,
        }
        if self.changed is not None:  # otherwise the answer has exactly the keys of the specification
            answer |= {"redacted": list(self.changed.redacted), "pointerized": list(self.changed.pointerized)}
        return answer

    def answer(self, member: str) -> None:
        """Print the receipt and the remarks."""
        answer_line(self.to_json(member), receipt_line(self.receipt))
        self.remark()

    def remark(self) -> None:
        """Print what the user may not expect: a payload changed by the policy, a log that was created."""
        if self.changed is not None and self.changed.redacted:
            say(printable(f"the policy removed {', '.join(self.changed.redacted)} before it was recorded"))
        if self.changed is not None and self.changed.pointerized:
            say(printable(f"the policy put {', '.join(self.changed.pointerized)} behind a pointer"))
        if self.made is not None:
            say(self.made)


class EventWriter:
    """Appends to one log, and reports when that creates the log: a typo in the name would create one, too."""

    def __init__(self, log: GitRepository, layout: Layout, topic: str, word: str) -> None:
        self._log = log
        self._layout = layout
        self._topic = topic
        self._word = word
        self._is_new = log.store.head(layout.head_ref(topic)) is None
        self._changed: dict[int, PrivacyOutcome] = {}
        log.privacy.on_change = lambda draft, changed: self._changed.update({id(draft): changed})

    def write(self, drafts: Sequence[Draft]) -> list[Recorded | RopewalkError]:
        """Record drafts in order; return one outcome per draft."""
        self._changed.clear()
        written = self._log.append_all(self._topic, drafts, layout=self._layout)
        return [
            outcome
            if isinstance(outcome, RopewalkError)
            else Recorded(outcome, self._changed.get(id(draft)), self._made())
            for draft, outcome in zip(drafts, written, strict=True)
        ]

    def write_one(self, draft: Draft) -> Recorded:
        """Record one draft, or raise the error that rejects it."""
        (outcome,) = self.write([draft])
        if isinstance(outcome, RopewalkError):
            raise outcome
        return outcome

    def _made(self) -> str | None:
        """Return the message for the first event of a log, else None."""
        if not self._is_new:
            return None
        self._is_new = False
        others = [each for each in self._log.topics(self._layout) if each != self._topic]
        return describe_new(self._word, self._topic, others)


def draft_parser(trailer: str | None = None, *, replay: bool = False) -> Callable[[bytes], Draft]:
    """Return a function that parses bytes into a draft, with the deployment fields of a trailer file."""
    from ropewalk.gitlog.core.envelope import Draft, parse_document

    fields = parse_input(trailer, parse_document) if trailer is not None else None
    return lambda raw: Draft(parse_document(raw), fields, replay=replay)


def append_lines(
    name: str,
    make: Callable[[bytes], Draft],
    writer: EventWriter,
    member: str,
    *,
    stop_on_error: bool,
    spell: Callable[[RopewalkError], RopewalkError] = lambda error: error,
) -> None:
    """Record one event per line; print one result per line once it is durable. Exit with the first error's code."""
    code = 0
    # With stop_on_error nothing may be recorded after the first rejected line: one line is one batch.
    for batch in _batches(name, 1 if stop_on_error else JSONL_BATCH):
        outcomes: list[tuple[int, RopewalkError | None]] = []
        drafts: list[Draft] = []
        for number, line in batch:
            try:
                drafts.append(make(line))
                outcomes.append((number, None))
            except RopewalkError as error:
                outcomes.append((number, error))
                if stop_on_error:
                    break
        written = iter(writer.write(drafts) if drafts else [])
        for number, refused in outcomes:
            outcome = next(written) if refused is None else refused
            if isinstance(outcome, RopewalkError):
                code = code or outcome.exit_code
                fail(spell(locate(outcome, f"line {number}")), as_json=session().json)
                if stop_on_error:
                    raise click.exceptions.Exit(code)
            else:
                outcome.answer(member)
    if code:
        raise click.exceptions.Exit(code)


def _batches(name: str, at_most: int) -> Iterator[list[tuple[int, bytes]]]:
    """Yield numbered lines as they arrive, in batches of at most `at_most`, without waiting for more."""
    lines: queue.Queue[tuple[int, bytes] | RopewalkError | None] = queue.Queue(maxsize=4 * JSONL_BATCH)

    def feed() -> None:
        try:
            with reading_input(name) as stream:
                for number, line in enumerate(stream, 1):
                    if line.strip():
                        lines.put((number, line))
            lines.put(None)
        except RopewalkError as error:
            lines.put(error)

    threading.Thread(target=feed, daemon=True).start()
    while True:
        batch = [lines.get()]
        while len(batch) < at_most and isinstance(batch[-1], tuple):
            try:
                batch.append(lines.get_nowait())
            except queue.Empty:
                if len(batch) == 1:
                    time.sleep(0.001)  # let a pipe that is being filled deliver more lines
                    if not lines.empty():
                        continue
                break
        ready = [line for line in batch if isinstance(line, tuple)]
        if ready:
            yield ready
        end = batch[-1]
        if isinstance(end, RopewalkError):
            raise end
        if end is None:
            return
