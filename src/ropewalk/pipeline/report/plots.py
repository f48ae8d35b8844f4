"""Drawings for a page that needs nothing else: bars over time, bars side by side, tables. Pure: values in, HTML out.

Bars are SVG that stretches; every word is HTML next to it, so that text keeps its size on a telephone and on a wall.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Literal

from ropewalk.pages import Html, fill

Unit = Literal["hour", "day", "week", "month"]
BARS_MAX: Final = 2_000  # what a plot can show; a log over centuries is cut to its end
COLOURS: Final = 8
KNOWN: Final = {"success": "good", "failed": "bad"}  # colours that mean something
_fill = partial(fill, "warehouse")


def number(value: float) -> str:
    """Return a number for people.

    >>> number(1708), number(6.181205), number(0.02), number(3.0)
    ('1,708', '6.2', '0.02', '3')
    """
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}" if abs(value) >= 1 else f"{value:.2g}"


def percent(share: float) -> str:
    """Return a share for people.

    >>> percent(0.138889)
    '13.9 %'
    """
    return f"{100 * share:.1f} %".replace(".0 %", " %")


def duration(seconds: float | None) -> str:
    """Return a time span in the unit that fits.

    >>> duration(42), duration(300), duration(8000), duration(200_000), duration(None)
    ('42 s', '5 min', '2.2 h', '2.3 days', '–')
    """
    if seconds is None:
        return "–"
    for size, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{number(round(seconds / size, 1))} {name}"
    return f"{number(round(seconds, 1))} s"


def choose_unit(first: datetime, last: datetime) -> Unit:
    """Return how wide a bar is, so that there are neither a handful nor hundreds.

    >>> choose_unit(datetime(2024, 11, 1), datetime(2024, 12, 13))
    'day'
    """
    days = (last - first) / timedelta(days=1)
    return "hour" if days < 3 else "day" if days < 100 else "week" if days < 700 else "month"


def buckets(first: datetime, last: datetime, unit: Unit) -> list[datetime]:
    """Return every bucket from one to the other, also those in which nothing happened.

    >>> len(buckets(datetime(2024, 10, 30), datetime(2024, 11, 2), "day"))
    4
    >>> [each.month for each in buckets(datetime(2024, 11, 1), datetime(2025, 1, 1), "month")]
    [11, 12, 1]
    """
    found = [first]
    while found[-1] < last:
        if unit == "month":
            at = found[-1]
            found.append(at.replace(year=at.year + at.month // 12, month=at.month % 12 + 1))
        else:
            found.append(
                found[-1]
                + {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1)}[unit]
            )
    return found[-BARS_MAX:]


def section(title: str, unit: str, body: Html) -> Html:
    """Return a part of the page; `unit` names what its numbers count. Without a body there is nothing to show yet."""
    small = _fill("unit", unit=unit) if unit else ""
    anchor = title.lower().replace(" ", "-")
    return _fill("section", anchor=anchor, title=title, unit=small, body=body or _fill("none"))


def strips(
    times: Sequence[datetime], unit: Unit, parts: Mapping[str, Mapping[str, Sequence[float]]], what: str
) -> Html:
    """Draw one strip of bars a name, all over the same time, each to its own height; stacked where a strip has several
    series.

    >>> noon = datetime(2024, 11, 1, 12)
    >>> strips([noon], "hour", {"prod": {"prod": [3.0]}}, "events").count("<rect")
    1
    """
    if not times or not parts:
        return Html()
    form = {"hour": "%d %b %H:%M", "day": "%d %b %Y", "week": "%d %b %Y", "month": "%b %Y"}[unit]
    labels = [at.strftime(form).lstrip("0") for at in times]
    order = list(dict.fromkeys(name for series in parts.values() for name in series))
    rows = [
        _strip(name, labels, unit, series, what, order, alone=len(order) == len(parts), place=place)
        for place, (name, series) in enumerate(parts.items())
    ]
    marks = dict.fromkeys((labels[0], labels[len(labels) // 2], labels[-1]))
    axis = [_fill("mark", label=label) for label in marks]
    legend = "" if len(order) == len(parts) else _legend(order)
    return _fill("strips", rows=rows, axis=axis, legend=legend)


def draw_bars(rows: Sequence[tuple[str, str, float, str]]) -> Html:
    """Draw horizontal bars: a name, a note below it, a value, and the value in words.

    >>> draw_bars([("verify", "", 810.5, "811 a second")]).count("<i")
    1
    """
    top = max((value for _, _, value, _ in rows), default=0) or 1
    bars = (
        _fill("bar", name=name, note=note, width=f"{100 * value / top:.1f}", words=words)
        for name, note, value, words in rows
    )
    return Html("".join(bars))


def table(columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[Any]]) -> Html:
    """Return a table; a column is a name and whether it holds numbers. None is a dash."""
    found = [list(row) for row in rows]
    if not found:
        return Html()
    head = [_fill("th_number" if numbers else "th", text=name) for name, numbers in columns]
    body = [
        _fill(
            "tr",
            cells=[
                _fill("td_number" if numbers else "td", text="–" if cell is None else cell)
                for cell, (_, numbers) in zip(row, columns, strict=True)
            ],
        )
        for row in found
    ]
    return _fill("table", head=head, body=body)


def _colour(name: str, place: int) -> str:
    return KNOWN.get(name, f"c{place % COLOURS}")


def _legend(names: Sequence[str]) -> Html:
    parts = [_fill("legend_part", colour=_colour(name, at), name=name) for at, name in enumerate(names)]
    return _fill("legend", parts=parts)


def _strip(
    name: str,
    labels: Sequence[str],
    unit: Unit,
    series: Mapping[str, Sequence[float]],
    what: str,
    order: Sequence[str],
    *,
    alone: bool,
    place: int,
) -> Html:
    count = len(labels)
    totals = [sum(values[at] for values in series.values()) for at in range(count)]
    top = max(totals) or 1
    bars = []
    for at, label in enumerate(labels):
        base = 100.0
        for each, values in series.items():
            tall = 100 * values[at] / top
            base -= tall
            if tall:
                colour = _colour(each, place if alone else order.index(each))
                told = f"{label}: {number(values[at])} {what}" + ("" if alone else f", {each}")
                x, y, height = f"{at + 0.08:.2f}", f"{base:.2f}", f"{tall:.2f}"
                bars.append(_fill("rect", colour=colour, x=x, y=y, height=height, title=told))
    note = f"{number(sum(totals))} {what}, at most {number(top)} {'an' if unit == 'hour' else 'a'} {unit}"
    return _fill("strip", name=name, note=note, count=count, bars=bars)
