"""Deployments as the trailers of events record them: one row for each event, and what is deployed now."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from ropewalk.gitlog.core.commit import rfc3339
from ropewalk.gitlog.core.divergence import DISPLACED
from ropewalk.gitlog.core.envelope import Event, refs_of
from ropewalk.kernel.ulid import Ulid, time_ms

STANDING: Final = ("success", "override", "revert", "finalize")  # status of a deployment that took effect


def deployment_row(event: Event, trailer: dict[str, Any]) -> dict[str, Any]:
    """Return the row of an event as `shiplog ls --json` prints it; parts of other types than expected are left out."""
    what, who, when = (_object(trailer.get(name)) for name in ("what", "who", "when"))
    displaced = refs_of(event.envelope).get(DISPLACED)
    return {
        "ulid": event.ulid,
        "ns": event.topic,
        "type": event.type,
        "time": _time(event.ulid, displaced, when.get("end_ts")),
        "env": trailer.get("env", event.topic),
        "status": trailer.get("status"),
        "service": what.get("service"),
        "artifact": what.get("artifact"),
        "who": who.get("name") or who.get("email"),
        "end": when.get("end_ts"),
        "displaced": displaced,
        "content_id": event.content_id,
        "commit": event.commit,
    }


def current_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last effective deployment of each namespace, environment and service, from rows newest first."""
    standing: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        if row["service"] and row["status"] in STANDING:
            key = (row["ns"], row["env"], row["service"])
            if key not in standing or _overtaken(standing[key], row):
                standing[key] = row
    return [standing[key] for key in sorted(standing)]


def _overtaken(row: dict[str, Any], older: dict[str, Any]) -> bool:
    """Return whether a row is newer in the log but ended earlier: a displaced event that was recorded again."""
    if row["displaced"] is None:
        return False
    try:
        return datetime.fromisoformat(row["end"]) < datetime.fromisoformat(older["end"])
    except (TypeError, ValueError):  # other software may have written something else
        return False


def _time(ulid: Ulid, displaced: Any, end: Any) -> str:
    """Return when an event took place: the end of the run, if the ULID is that of a later re-append."""
    try:
        if displaced is not None and datetime.fromisoformat(end).utcoffset() is not None:
            return str(end)
    except (TypeError, ValueError):
        pass
    return rfc3339(time_ms(ulid))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
