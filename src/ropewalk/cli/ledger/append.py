"""`ropewalk ledger append`: one envelope, or one per line with one result per line."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import click

from ropewalk.cli.common.command import answer_line, command, emit, parse_input, reading_input, say
from ropewalk.cli.common.options import flag, required
from ropewalk.cli.ledger.channel import channel_key, check_first_line, open_for_append, read_channel
from ropewalk.errors import InvalidEnvelope, RopewalkError, locate
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.ledger.channel.channel import OpenLog
    from ropewalk.ledger.ingest.ticket import EnvelopeSink, LedgerReceipt

LINE_BYTES_MAX = 4 << 20  # the largest envelope, before it is canonical
LINES_AHEAD_MAX = 4096  # read but not yet answered; the reader waits above this


@command(
    "append",
    "ropewalk ledger append --channel audit --file envelope.json",
    "producer | ropewalk ledger append --channel audit --file - --jsonl --json",
    "ropewalk ledger append --channel audit --file envelope.json --witnessed --json",
)
@required("--channel", "C", "Channel; created if it does not exist.")
@required("--file file", "F", "Envelope as JSON or CBOR; `-` reads stdin.")
@flag("--jsonl", "Read one envelope per line; print one result per line, once it is durable.")
@flag("--stop-on-error", "With --jsonl: stop at the first rejected line (slower: one block per line).")
@flag(
    "--witnessed",
    "Return with the cosignatures of the channel's witnesses; exit 7 if too few of them answer.",
)
def append(channel: str, file: str, jsonl: bool, stop_on_error: bool, witnessed: bool) -> None:
    """Check envelopes against the eight rules and the channel's policy, and seal them into blocks.

    With --witnessed, or if the channel is set to fail closed (`ledger witness set`), a receipt has `checkpoint` and
    `cosignatures`. Without enough of them the envelope is durable, its receipt has none, and the exit code is 7.
    """
    sinks: list[EnvelopeSink] = []
    if jsonl:
        opened: list[OpenLog] = []

        def begin() -> EnvelopeSink:
            opened.append(stack.enter_context(open_for_append(channel)))
            sinks.append(_sink(opened[0], channel, witnessed, stack))
            return sinks[0]

        with ExitStack() as stack:
            code = answer_lines(file, begin, stop_on_error, partial(_refused_at_first, channel))
        for each in opened:
            _say_unindexed(each)
        if code:
            raise click.exceptions.Exit(code)
        _end_unwitnessed(sinks)
        return
    # Before opening the channel: a rejected envelope must not create one.
    raw = parse_input(file, check_envelope, limit=LINE_BYTES_MAX)
    check_first_line(channel, raw)
    with ExitStack() as stack:
        sealing = stack.enter_context(open_for_append(channel))
        sinks.append(_sink(sealing, channel, witnessed, stack))
        receipt = sinks[0].submit(raw)
        # Before closing, which may fail: the envelope is durable.
        emit(receipt.to_json(), receipt_line(receipt))
    _say_unindexed(sealing)
    _end_unwitnessed(sinks)


def _sink(opened: OpenLog, channel: str, witnessed: bool, stack: ExitStack) -> EnvelopeSink:
    """Return what takes the envelopes: the channel, or the channel with its witnesses."""
    from ropewalk.ledger.channel.witnessed import witness_gate

    if not witnessed and witness_gate(opened.channel.folder) is None:
        return opened.log
    from ropewalk.ledger.transparency.witnessing import WitnessClient, WitnessedLog

    reading = stack.enter_context(read_channel(channel))
    return WitnessedLog(opened.log, WitnessClient(reading, channel_key(channel)))


def _end_unwitnessed(sinks: list[EnvelopeSink]) -> None:
    """Exit 7 if too few witnesses have signed; the receipts are printed."""
    missing = getattr(sinks[0], "missing", None) if sinks else None
    if missing is not None:
        say(f"not witnessed: {printable(missing.detail)}. {missing.advice_now}")
        raise click.exceptions.Exit(missing.exit_code)


def _say_unindexed(opened: OpenLog) -> None:
    if opened.unindexed:
        say(f"{opened.unindexed}; the envelopes are sealed, and the index will be rebuilt from the log")


def check_envelope(raw: bytes) -> bytes:
    """Return the bytes if they are an envelope, else raise."""
    from ropewalk.ledger.envelope.envelope import BUILD_ADVICE, parse_wire

    try:
        parse_wire(raw)
    except InvalidEnvelope as error:
        error.advice_now = BUILD_ADVICE
        raise
    return raw


def answer_lines(
    file: str,
    begin: Callable[[], EnvelopeSink],
    stop_on_error: bool,
    look: Callable[[list[bytes]], list[RopewalkError]] = lambda _lines: [],
) -> int:
    """Append one envelope per line, print one result per line, and return the exit code of the first error.

    Lines that arrive together are sealed together. The log is opened at the first line that `look` does not reject.
    """
    code = 0
    log: EnvelopeSink | None = None
    for numbered in _numbered(_arrivals(file)):
        lines = [line for _, line in numbered]
        outcomes: list[LedgerReceipt | RopewalkError] = []
        if log is None:
            outcomes += look(lines)
            rest = [] if outcomes and stop_on_error else lines[len(outcomes) :]
            if rest:
                log = begin()
        else:
            rest = lines
        if log is not None:
            outcomes += _until_refused(log, rest) if stop_on_error else log.submit_many(rest)
        for (number, _), outcome in zip(numbered, outcomes, strict=False):  # outcomes may end at an error
            _answer(locate(outcome, f"line {number}") if isinstance(outcome, RopewalkError) else outcome)
            if isinstance(outcome, RopewalkError):
                code = code or outcome.exit_code
                if stop_on_error:
                    return code
    return code


def _numbered(batches: Iterator[list[bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Number the lines, and drop blank ones."""
    count = 0
    for lines in batches:
        found = [(number, line) for number, line in enumerate(lines, count + 1) if line.strip()]
        count += len(lines)
        if found:
            yield found


def _refused_at_first(channel: str, lines: list[bytes]) -> list[RopewalkError]:
    """Return the errors of the lines before the first that could create the channel; [] if it exists."""
    refused: list[RopewalkError] = []
    for line in lines:
        try:
            check_first_line(channel, line)
            break
        except RopewalkError as error:
            refused.append(error)
    return refused


def _until_refused(log: EnvelopeSink, lines: list[bytes]) -> list[LedgerReceipt | RopewalkError]:
    """Append one by one up to the first error: nothing after it may be in the log."""
    outcomes: list[LedgerReceipt | RopewalkError] = []
    for line in lines:
        try:
            outcomes.append(log.submit(line))
        except RopewalkError as error:
            return [*outcomes, error]
    return outcomes


def _arrivals(file: str) -> Iterator[list[bytes]]:
    """Yield lines in batches as they arrive: a full pipe gives large batches, a terminal single lines."""
    arrived: queue.Queue[list[bytes] | BaseException | None] = queue.Queue(maxsize=LINES_AHEAD_MAX // 64)

    def pump() -> None:
        try:
            with reading_input(file) as stream:
                rest = b""
                while chunk := stream.read1(1 << 20):  # type: ignore[attr-defined]
                    *whole, rest = (rest + chunk).split(b"\n")
                    for start in range(0, len(whole), LINES_AHEAD_MAX):
                        arrived.put(whole[start : start + LINES_AHEAD_MAX])
                    rest = rest[: LINE_BYTES_MAX + 1]  # enough to be rejected as too large at its end
                if rest:
                    arrived.put([rest])
        except BaseException as error:
            arrived.put(error)
        finally:
            arrived.put(None)

    threading.Thread(target=pump, daemon=True).start()
    while (batch := arrived.get()) is not None:
        if isinstance(batch, BaseException):
            raise batch
        yield batch


def _answer(outcome: LedgerReceipt | RopewalkError) -> None:
    if isinstance(outcome, RopewalkError):
        answer_line(outcome.to_problem(), f"error  {outcome.code}: {outcome.detail}")
    else:
        answer_line(outcome.to_json(), receipt_line(outcome))


def receipt_line(receipt: LedgerReceipt) -> str:
    """Return a receipt as a line for people."""
    again = "  (recorded before)" if receipt.replayed else ""
    place = f"height={receipt.height} index={receipt.index}"
    audit = f"  audit ({'; '.join(map(printable, receipt.audit))})" if receipt.audit else ""
    block = f"{receipt.block_hash.hex()[:16]}…"
    signed = "" if receipt.cosignatures is None else f" cosignatures={len(receipt.cosignatures)}"
    return f"ok  {place} envelope_id={receipt.envelope_id.hex()} block={block}{signed}{again}{audit}"
