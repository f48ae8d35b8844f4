"""The configuration of a watch: what to look at, where alerts go, and what to do by schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ropewalk.errors import Invalid
from ropewalk.kernel import jcs

NOTICE_DAYS = [30, 14, 7]
DAY_S = 86_400
INTERVAL_S_MAX = 36_525 * DAY_S
VERIFY = ("strict", "quarantine")  # what `ingest` does with entries that do not verify
# member → its own members
OBJECTS: dict[str, set[str]] = {
    "alerts": {"channel"},
    "observations": {"channel"},
    "alertmanager": {"url"},
    "retention": {"keep_days", "archive", "drop"},
    "drills": {"every_days"},
    "anchors": {"every_hours", "folder", "host"},
    "compaction": {"every_hours"},
    "tables": {"every_hours", "warehouse"},
    "ingest": {"every_minutes", "warehouse", "verify"},
}
MEMBERS = {"version", "interval_seconds", "webhooks", "freshness_seconds", "notice_days", "server", *OBJECTS}


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """What to watch, where alerts go, and the schedules; a schedule of None never runs."""

    interval_s: float = 30.0
    alert_channel: str | None = None
    observation_channel: str | None = None
    alertmanager: str | None = None
    webhooks: tuple[str, ...] = ()
    freshness_s: float = DAY_S
    keep_days: float | None = None
    archive: str | None = None
    drop: bool = False
    drills_s: float | None = None
    anchors_s: float | None = None
    anchor_folder: str | None = None
    anchor_host: str = "localhost"
    compaction_s: float | None = None
    tables_s: float | None = None
    warehouse: str | None = None
    ingest_s: float | None = None
    ingest_into: str | None = None
    ingest_verify: str = "strict"


def parse_watch(document: dict[str, Any]) -> WatchConfig:
    """Read a watch configuration; every member is optional.

    >>> parse_watch({"version": 1, "retention": {"archive": "cold"}, "drills": {"every_days": 7}}).drills_s
    604800
    """
    if unknown := sorted(document.keys() - MEMBERS):
        raise Invalid(f"watch configuration: unknown member {unknown[0]!r:.60}")
    if document.get("notice_days", NOTICE_DAYS) != NOTICE_DAYS:
        raise Invalid(f'"notice_days" must be {NOTICE_DAYS}, the days at which notices are due')
    parts = {name: _object(document, name) for name in OBJECTS}
    archive = _text(parts["retention"], "archive")
    if "drills" in document and archive is None:
        raise Invalid('"drills" rebuilds channels from archives and needs "retention": {"archive": DIR}')
    if _flag(parts["retention"], "drop") and archive is None:
        raise Invalid('"retention": {"drop": true} needs "archive": what is dropped is read there')
    if "tables" in document and not parts["tables"].get("warehouse"):
        raise Invalid('"tables" compacts the tables of a warehouse and needs "warehouse": DIR')
    if "ingest" in document and not parts["ingest"].get("warehouse"):
        raise Invalid('"ingest" writes new entries to the tables of a warehouse and needs "warehouse": DIR')
    verify = _text(parts["ingest"], "verify") or "strict"
    if verify not in VERIFY:
        raise Invalid(f'"verify" of "ingest" must be one of {", ".join(VERIFY)}')
    return WatchConfig(
        interval_s=_seconds(document, "interval_seconds", 30.0),
        alert_channel=_text(parts["alerts"], "channel"),
        observation_channel=_text(parts["observations"], "channel"),
        alertmanager=_text(parts["alertmanager"], "url"),
        webhooks=_webhooks(document),
        freshness_s=_seconds(document, "freshness_seconds", DAY_S),
        keep_days=_seconds(parts["retention"], "keep_days", 0, DAY_S) / DAY_S or None,
        archive=archive,
        drop=_flag(parts["retention"], "drop"),
        drills_s=_seconds(parts["drills"], "every_days", 7.0, DAY_S) if "drills" in document else None,
        anchors_s=_hours(document, "anchors", 1.0),
        anchor_folder=_text(parts["anchors"], "folder"),
        anchor_host=_text(parts["anchors"], "host") or "localhost",
        compaction_s=_hours(document, "compaction", 24.0),
        tables_s=_hours(document, "tables", 24.0),
        warehouse=_text(parts["tables"], "warehouse"),
        ingest_s=_seconds(parts["ingest"], "every_minutes", 5.0, 60) if "ingest" in document else None,
        ingest_into=_text(parts["ingest"], "warehouse"),
        ingest_verify=verify,
    )


def _webhooks(document: dict[str, Any]) -> tuple[str, ...]:
    found = document.get("webhooks", [])
    if isinstance(found, list) and all(isinstance(each, dict) and each.keys() == {"url"} for each in found):
        urls = tuple(each["url"] for each in found)
        if all(isinstance(url, str) and url for url in urls):
            return urls
    raise Invalid('"webhooks" must be a list of objects, each with a "url" and nothing else')


def _hours(document: dict[str, Any], name: str, default: float) -> float | None:
    return _seconds(document[name], "every_hours", default, 3_600) if name in document else None


def _object(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name, {})
    if not isinstance(found, dict):
        raise Invalid(f'"{name}" must be an object')
    if unknown := sorted(found.keys() - OBJECTS[name]):
        raise Invalid(f'watch configuration: "{name}" has no member {unknown[0]!r:.60}')
    return found


def _text(document: dict[str, Any], name: str) -> str | None:
    found = document.get(name)
    if found is not None and not isinstance(found, str):
        raise Invalid(f'"{name}" must be a string')
    return found


def _flag(document: dict[str, Any], name: str) -> bool:
    found = document.get(name, False)
    if not isinstance(found, bool):
        raise Invalid(f'"{name}" must be true or false')
    return found


def _seconds(document: dict[str, Any], name: str, default: float, unit_s: int = 1) -> float:
    """Return a member that counts units of so many seconds, in seconds."""
    found = document.get(name, default)
    if (
        isinstance(found, bool)
        or not isinstance(found, int | float)
        or not 0 <= found * unit_s <= INTERVAL_S_MAX
    ):
        raise Invalid(f'"{name}" must be a number of 0 or more, and at most a hundred years')
    return found * unit_s


def read_watch(raw: bytes) -> WatchConfig:
    """Read the file of `watch --config`: the members themselves, or a `watch` object among those of the server."""
    document: Any = jcs.parse(raw)
    if not isinstance(document, dict) or document.get("version") != 1:
        raise Invalid('a watch configuration must be an object with "version": 1')
    inner = document.get("watch")
    return parse_watch(inner if isinstance(inner, dict) else document)
