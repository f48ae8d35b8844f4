"""Drawings for a page that needs nothing else: bars over time, bars side by side, tables. Pure: values in, HTML out.

Bars are SVG that stretches; every word is HTML next to it, so that text keeps its size on a telephone and on a wall.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any, Final, Literal

Unit = Literal["hour", "day", "week", "month"]
BARS_MAX: Final = 2_000  # what a plot can show; a log over centuries is cut to its end
COLOURS: Final = 8
KNOWN: Final = {"success": "good", "failed": "bad"}  # colours that mean something

STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b2430;--soft:#5b6878;--line:#dfe5ec;--back:#f6f8fa;--card:#fff;--good:#2c7a51;
--bad:#c2410c;--c0:#2563ae;--c1:#b45309;--c2:#0f766e;--c3:#7c3aed;--c4:#be185d;--c5:#4d7c0f;--c6:#64748b;--c7:#a16207}
@media (prefers-color-scheme:dark){:root{--ink:#e6ebf1;--soft:#9aa8b8;--line:#2b3644;--back:#11161d;--card:#19212b;
--good:#4ade80;--bad:#fb923c;--c0:#60a5fa;--c1:#fbbf24;--c2:#2dd4bf;--c3:#a78bfa;--c4:#f472b6;--c5:#a3e635;
--c6:#94a3b8;--c7:#facc15}}
*{box-sizing:border-box}body{font:16px/1.5 system-ui,sans-serif;margin:0;color:var(--ink);background:var(--back)}
main{max-width:1080px;margin:0 auto;padding:1.5rem 1rem 3rem}h1{font-size:1.6rem;margin:0}
header p{color:var(--soft);margin:.25rem 0 1.25rem;overflow-wrap:anywhere}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:1rem 1.1rem;margin:0 0 1rem}
h2{font-size:1.05rem;margin:0}h2 small{font-weight:400;color:var(--soft);font-size:.85rem;margin-left:.4rem}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.75rem;margin:0 0 1rem}
.facts div{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:.7rem .9rem}
.facts dt{color:var(--soft);font-size:.8rem}.facts dd{margin:0;font-size:1.35rem;font-variant-numeric:tabular-nums}
.facts .bad dd{color:var(--bad)}.row{display:grid;grid-template-columns:minmax(7rem,11rem) 1fr;gap:.2rem 1rem;
align-items:center;padding:.45rem 0;border-top:1px solid var(--line)}.row:first-of-type{border-top:0}
.row b{font-weight:600;overflow-wrap:anywhere}.row small{display:block;color:var(--soft);font-weight:400}
.row svg{display:block;width:100%;height:46px;border-bottom:1px solid var(--line)}
.axis{display:flex;justify-content:space-between;color:var(--soft);font-size:.78rem;
font-variant-numeric:tabular-nums;margin-left:calc(min(11rem,max(7rem,22%)) + 1rem);padding-top:.15rem}
.bar{display:grid;grid-template-columns:1fr auto;gap:.6rem;align-items:center}
.bar i{display:block;height:.9rem;border-radius:3px;background:var(--c0)}
.bar span{font-variant-numeric:tabular-nums;color:var(--soft);white-space:nowrap}
.legend{color:var(--soft);font-size:.85rem;margin:.5rem 0 0}.legend i{display:inline-block;width:.75em;height:.75em;
border-radius:2px;margin:0 .35em 0 .9em}.legend i:first-child{margin-left:0}.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem}td,th{padding:.35rem 1.1rem .35rem 0;text-align:left;
border-bottom:1px solid var(--line);white-space:nowrap}th{color:var(--soft);font-weight:600;font-size:.82rem}
tr:last-child td{border-bottom:0}.n{text-align:right;font-variant-numeric:tabular-nums}code{font-size:.88em}
.none{color:var(--soft);margin:.4rem 0 0}
@media (max-width:34rem){.row{grid-template-columns:1fr}.axis{margin-left:0}main{padding:1rem .6rem 2rem}}
@media print{body{background:#fff}section,.facts div{break-inside:avoid}}
""" + "".join(
    f".f{name}{{fill:var(--{name})}}.b{name}{{background:var(--{name})!important}}"
    for name in ("good", "bad", *(f"c{at}" for at in range(COLOURS)))
)


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


def section(title: str, unit: str, body: str) -> str:
    """Return a part of the page; `unit` names what its numbers count. Without a body there is nothing to show yet."""
    small = f"<small>{escape(unit)}</small>" if unit else ""
    return f"<section><h2>{escape(title)}{small}</h2>{body or '<p class=none>Nothing yet.</p>'}</section>"


def strips(
    times: Sequence[datetime], unit: Unit, parts: Mapping[str, Mapping[str, Sequence[float]]], what: str
) -> str:
    """Draw one strip of bars a name, all over the same time, each to its own height; stacked where a strip has several
    series.

    >>> noon = datetime(2024, 11, 1, 12)
    >>> strips([noon], "hour", {"prod": {"prod": [3.0]}}, "events").count("<rect")
    1
    """
    if not times or not parts:
        return ""
    form = {"hour": "%d %b %H:%M", "day": "%d %b %Y", "week": "%d %b %Y", "month": "%b %Y"}[unit]
    labels = [at.strftime(form).lstrip("0") for at in times]
    order = list(dict.fromkeys(name for series in parts.values() for name in series))
    rows = [
        _strip(name, labels, unit, series, what, order, alone=len(order) == len(parts), place=place)
        for place, (name, series) in enumerate(parts.items())
    ]
    marks = dict.fromkeys((labels[0], labels[len(labels) // 2], labels[-1]))
    axis = "".join(f"<span>{escape(label)}</span>" for label in marks)
    legend = "" if len(order) == len(parts) else _legend(order)
    return f'{"".join(rows)}<div class="axis">{axis}</div>{legend}'


def draw_bars(rows: Sequence[tuple[str, str, float, str]]) -> str:
    """Draw horizontal bars: a name, a note below it, a value, and the value in words.

    >>> draw_bars([("verify", "", 810.5, "811 a second")]).count("<i")
    1
    """
    top = max((value for _, _, value, _ in rows), default=0) or 1
    return "".join(
        f'<div class="row"><b>{escape(name)}<small>{escape(note)}</small></b><div class="bar">'
        f'<i style="width:{100 * value / top:.1f}%"></i><span>{escape(words)}</span></div></div>'
        for name, note, value, words in rows
    )


def table(columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table; a column is a name and whether it holds numbers. None is a dash."""
    found = [list(row) for row in rows]
    if not found:
        return ""
    head = "".join(f"<th{_right(numbers)}>{escape(name)}</th>" for name, numbers in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_right(numbers)}>{escape('–' if cell is None else str(cell))}</td>"
            for cell, (_, numbers) in zip(row, columns, strict=True)
        )
        + "</tr>"
        for row in found
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _right(numbers: bool) -> str:
    return ' class="n"' if numbers else ""


def _colour(name: str, place: int) -> str:
    return KNOWN.get(name, f"c{place % COLOURS}")


def _legend(names: Sequence[str]) -> str:
    parts = "".join(f'<i class="b{_colour(name, at)}"></i>{escape(name)}' for at, name in enumerate(names))
    return f'<p class="legend">{parts}</p>'


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
) -> str:
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
                bars.append(
                    f'<rect class="f{colour}" x="{at + 0.08:.2f}" y="{base:.2f}" width=".84" height="{tall:.2f}">'
                    f"<title>{escape(told)}</title></rect>"
                )
    note = f"{number(sum(totals))} {what}, at most {number(top)} {'an' if unit == 'hour' else 'a'} {unit}"
    return (
        f'<div class="row"><b>{escape(name)}<small>{escape(note)}</small></b>'
        f'<svg viewBox="0 0 {count} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(f"{name}: {note}")}">{"".join(bars)}</svg></div>'
    )
