"""Cases for streams (S2): which names a pattern stands for, and what somebody who comes back is sent."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["generate"]

REFS = [
    "refs/gatos/state/public/main",
    "refs/gatos/state/public/ui/main",
    "refs/gatos/state/public",
    "refs/gatos/messages/jobs/pending/head",
    "refs/gatos/shiplog/prod/head",
    "refs/gatos/main",
]
REF_PATTERNS = [
    "refs/gatos/state/public/**",
    "refs/gatos/state/public/*",
    "refs/gatos/**/main",
    "refs/gatos/**",
    "refs/**/head",
    "refs/gatos/*/*/head",
    "refs/gatos/ma*",
    "refs/gatos/*a*n",
    "refs/gatos/main",
]
TOPICS = [
    "jobs",
    "jobs/pending",
    "jobs.pending",
    "gatos.jobs.pending",
    "jobs/pending/high",
    "governance",
    "gatos",
]
TOPIC_PATTERNS = [
    "jobs",
    "gatos.jobs",
    "jobs.*",
    "jobs/*",
    "gatos.jobs.*",
    "jobs.**",
    "jobs.>",
    "**",
    ">",
    "*",
    "*.*",
    "gatos.*",
    "gov*",
    "gatos",
]
NO_PATTERNS = {
    "ref": [
        "",
        "heads/main",
        "*",
        "refs//x",
        "refs/x/",
        "refs/x**",
        "refs/***",
        "refs/a..b",
        "refs/a b",
        "refs/[ab]",
    ],
    "topic": ["", "jobs..x", ".jobs", "jobs.", "jobs.>.x", "jobs pending", "jobs.**x", "jöbs"],
}


def generate() -> dict[str, object]:
    return {"stream/patterns.json": _patterns(), "stream/catch_up.json": _catch_up()}


def _patterns() -> dict[str, Any]:
    why = (
        "Within one part * stands for any text, ** for parts of any number: none or more, at the end one or more. "
        "Topics are split at dots and slashes alike, and a leading gatos. counts for nothing, in patterns and names. "
        "A final > in a topic is **. `matches` lists those of `names` that the pattern stands for."
    )
    cases: list[dict[str, Any]] = []
    for kind, patterns, names in (("ref", REF_PATTERNS, REFS), ("topic", TOPIC_PATTERNS, TOPICS)):
        for pattern in patterns:
            matched = [name for name in names if _matches(kind, pattern, name)]
            given = {"kind": kind, "pattern": pattern, "names": names}
            cases.append({"name": f"{kind} {pattern}", "input": given, "expect": {"matches": matched}})
    for kind, texts in NO_PATTERNS.items():
        for text in texts:
            given = {"kind": kind, "pattern": text, "names": []}
            cases.append({"name": f"no {kind} {text!r}", "input": given, "error": "InvalidName"})
    return {"name": "patterns", "why": why, "cases": cases}


def _matches(kind: str, pattern: str, name: str) -> bool:
    """By regular expression: slow on hostile patterns, and plainly right on short ones."""
    cut = "/"
    if kind == "topic":
        cut = r"\."
        pattern, name = (text.replace("/", ".").removeprefix("gatos.") for text in (pattern, name))
        pattern = re.sub(r"(^|\.)>$", r"\1**", pattern)
    parts = re.split(cut, pattern)
    wild = f"[^{cut}]"
    made = ""
    for at, part in enumerate(parts):
        join = cut if at else f"(?:^|{cut})"
        if part == "**":
            made += f"(?:{join}{wild}+)" + ("+" if at == len(parts) - 1 else "*")
            if not at:
                made = f"(?:(?:^|{cut}){wild}+)" + ("+" if len(parts) == 1 else "*")
        else:
            made += join + "".join(f"{wild}*" if each == "*" else re.escape(each) for each in part)
    return re.fullmatch(made, name) is not None


def _catch_up() -> dict[str, Any]:
    why = (
        "A stream whose first frame has the number base+1 published frames at the given times (ms), and keeps the "
        "newest frames_max of them, and none of age_ms_max or older. Somebody connects at now_ms and asks for all "
        "since a number: they are sent the frames. Where one of them is gone, or the number is ahead, "
        "REPLAY_EXPIRED comes first, with missingSeq = sinceSeq+1, the oldest frame kept and the number before it; "
        "then come all frames that are kept. Nought asks for all that is kept, and nothing is gone then."
    )
    cases = [
        _case("everything", 100, [0, 1, 2], 10, 1000, 600_000, 0),
        _case("since_the_first", 100, [0, 1, 2], 10, 1000, 600_000, 101),
        _case("since_the_newest", 100, [0, 1, 2], 10, 1000, 600_000, 103),
        _case("since_the_base_by_number", 100, [0, 1, 2], 10, 1000, 600_000, 100),
        _case("nothing_published", 100, [], 10, 1000, 600_000, 0),
        _case("ahead", 100, [0, 1, 2], 10, 1000, 600_000, 104),
        _case("of_an_earlier_run", 100, [0, 1, 2], 10, 1000, 600_000, 7),
        _case("just_within_the_count", 100, [0, 1, 2, 3, 4], 10, 3, 600_000, 102),
        _case("just_beyond_the_count", 100, [0, 1, 2, 3, 4], 10, 3, 600_000, 101),
        _case("nought_beyond_the_count", 100, [0, 1, 2, 3, 4], 10, 3, 600_000, 0),
        _case("just_within_the_age", 100, [0, 1, 2], 99, 1000, 100, 100),
        _case("just_beyond_the_age", 100, [0, 1, 2], 100, 1000, 100, 100),
        _case("all_too_old_but_all_seen", 100, [0, 1, 2], 9999, 1000, 100, 103),
    ]
    return {"name": "catch_up", "why": why, "cases": cases}


def _case(
    name: str, base: int, published: list[int], now_ms: int, frames_max: int, age_ms_max: int, since: int
) -> dict[str, Any]:
    kept = [
        base + 1 + at
        for at, time_ms in enumerate(published)
        if at >= len(published) - frames_max and time_ms > now_ms - age_ms_max
    ]
    newest = base + len(published)
    oldest = kept[0] if kept else newest + 1
    start = oldest - 1 if since == 0 else since
    given = {
        "base": base,
        "published_ms": published,
        "now_ms": now_ms,
        "frames_max": frames_max,
        "age_ms_max": age_ms_max,
        "sinceSeq": since,
    }
    if start > newest or start + 1 < oldest:
        lost = {"code": "REPLAY_EXPIRED", "missingSeq": since + 1, "oldestSeq": oldest, "seq": oldest - 1}
        return {"name": name, "input": given, "expect": {"seqs": kept, "lost": lost}}
    return {
        "name": name,
        "input": given,
        "expect": {"seqs": [seq for seq in kept if seq > start], "lost": None},
    }
