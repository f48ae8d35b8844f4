"""Shared by the commands over git logs: print events, parse times, suggest names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ropewalk.cli.common.command import say, session
from ropewalk.cli.common.locations import here, login, named_writer, sealing_key
from ropewalk.cli.common.suggest import describe_new, did_you_mean
from ropewalk.errors import Invalid, InvalidUlid, NotFound
from ropewalk.gitlog.core.layout import CONSUMERS, MESSAGES, SHIPLOG, Layout
from ropewalk.kernel.terminal_text import printable_json

if TYPE_CHECKING:
    from ropewalk.gitlog.core.envelope import Event
    from ropewalk.gitlog.core.planning import Receipt
    from ropewalk.gitlog.core.reading import EventPage
    from ropewalk.gitlog.repository.repository import GitRepository

UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
ENVELOPE_ORDER = ("ulid", "ns", "type", "payload", "refs")  # as S0 §11 prints them


def opened() -> GitRepository:
    """Open the repository of this command."""
    from ropewalk.gitlog.repository.opening import open_repository

    log = open_repository(here().git_dir)
    log.store.identify(*named_writer(), fallback=login())
    log.privacy.keys = sealing_key  # privacy rules may seal values
    return log


@contextmanager
def suggesting_names(log: GitRepository, layout: Layout) -> Iterator[None]:
    """Add a suggestion to NotFound errors about a log raised within."""
    try:
        yield
    except NotFound as error:
        name = error.fields.get("topic")
        if isinstance(name, str) and name not in (known := log.topics(layout)):
            error.advice_now = _meant(log, layout, name, known) or error.advice_now
        raise


def _meant(log: GitRepository, layout: Layout, name: str, known: list[str]) -> str | None:
    if like := did_you_mean(name, known):
        return like
    if layout is MESSAGES and name in log.topics(SHIPLOG):
        return f"It is a namespace: ropewalk shiplog read --ns {name}"
    if layout is SHIPLOG and name in log.topics(MESSAGES):
        return f"It is a topic of messages: ropewalk messages read --topic {name}"
    from ropewalk.gitlog.sharing.remotes import advise_missing

    if advice := advise_missing(log.store.place.git_dir, log.store, layout, name):
        return advice
    if layout is MESSAGES and "." in name:
        return f"Parts of a topic are separated by /, as in {name.replace('.', '/')}; only stream patterns use dots."
    return f"There is: {', '.join(known[:10])}" if known else None


@contextmanager
def explaining_since(since: str | None) -> Iterator[None]:
    """Advise `shiplog ls` where --since was given a time, not a ULID."""
    try:
        yield
    except InvalidUlid as error:
        with suppress(Invalid):
            since_ms(since or "", 0)
            error.advice_now = (
                f"--since takes the ULID of an event here; `ropewalk shiplog ls --since {since}` takes times."
            )
        raise


@contextmanager
def announcing_group(log: GitRepository, group: str) -> Iterator[None]:
    """Print a message if a consumer group is created within."""
    known = _groups(log)
    yield
    if group not in known and group in _groups(log):
        say(describe_new("consumer group", group, known))


def _groups(log: GitRepository) -> set[str]:
    from ropewalk.gitlog.consumers.cursor import split_ref

    return {split_ref(ref)[0] for ref in log.store.head_names(CONSUMERS)}


def short(name: str) -> str:
    """Return a content id or commit, shortened for people.

    >>> short("blake3:2a6c" + "0" * 60), short("8b1c1e4" + "0" * 33)
    ('blake3:2a6c…', '8b1c1e4')
    """
    if name.startswith("blake3:"):
        return name[:11] + "…"
    return name[:7]


def event_json(event: Event) -> dict[str, Any]:
    """Return the `--json` form of an event."""
    return {
        "ulid": event.ulid,
        "content_id": event.content_id,
        "commit": event.commit,
        "envelope": event.envelope,
    }


def event_line(event: Event) -> str:
    """Return an event as a line, as S0 §11 prints it."""
    envelope = {name: event.envelope[name] for name in ENVELOPE_ORDER if name in event.envelope}
    text = json.dumps(envelope, ensure_ascii=False, separators=(",", ":"))
    return f"{event.ulid}  {short(event.content_id)}  {short(event.commit)}  {printable_json(text)}"


def receipt_line(receipt: Receipt) -> str:
    """Return a receipt as a line, as S0 §11 prints it."""
    again = "  (recorded before)" if receipt.replayed else ""
    return f"ok  commit={short(receipt.commit)} content_id={short(receipt.content_id)} ulid={receipt.ulid}{again}"


def say_more(page: EventPage, count: int, how: str | None = None) -> None:
    """Print how to read on if a page does not reach entry `count`; programs use `next_since`."""
    left = count - page.events[-1].height - 1 if page.events else 0
    if left > 0 and not session().json:
        say(f"{left} more; to go on: {how or f'--since {page.next_since}'}")


def since_ms(text: str, now_ms: int) -> int:
    """Parse a moment in the past: a span such as `2d`, `3h` or `30m`, `today`, `yesterday`, or a date.

    >>> since_ms("2h", 10_000_000)
    2800000
    """
    if match := re.fullmatch(r"(\d+)([smhdw])", text):
        return now_ms - int(match[1]) * UNITS_S[match[2]] * 1_000
    days = {"today": 0, "yesterday": 1}.get(text)
    try:
        if days is not None:
            midnight = (
                datetime.fromtimestamp(now_ms / 1_000)
                .astimezone()
                .replace(hour=0, minute=0, second=0, microsecond=0)
            )
            return int((midnight - timedelta(days=days)).timestamp() * 1_000)
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1_000)
    except ValueError as error:
        raise Invalid(
            f"--since must be a span such as 2d or 3h, today, yesterday or a date, got {text!r}",
            text=text,
            advice="Dates are written 2027-01-31 or 2027-01-31T12:00.",
        ) from error
