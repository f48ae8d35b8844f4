"""What the console shows beyond single logs: all logs at a glance, history from the newest end, deployments."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any

from litestar import Response, Router, get
from litestar.params import QueryParameter

from ropewalk import __version__
from ropewalk.disk.state_folder import StateFolder
from ropewalk.errors import RopewalkError
from ropewalk.gitlog.core.commit import parse_message
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.core.objects import Commit
from ropewalk.gitlog.repository.deployments import current_rows, deployment_row
from ropewalk.gitlog.repository.recent import history
from ropewalk.gossip.peer.topics import open_topic, topics
from ropewalk.kernel.ulid import parse, time_ms
from ropewalk.ledger.block.block import parse_record
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.settings import channels
from ropewalk.server.auth.rights import WAREHOUSE, Identity
from ropewalk.server.http import models
from ropewalk.server.http.replies import LAYOUTS, Asked, git_log, identity_of, node_of, permitted, reply
from ropewalk.server.node import ServerNode
from ropewalk.server.watch.rounds import read_state

BUCKETS = 60
SPAN_S = 30 * 86_400
SPAN_S_MAX = 366 * 86_400
COUNTED_MAX = 20_000  # newest entries of a log that its rate is taken from
SCANNED_MAX = 20_000  # events that one request with filters looks at
PAGE_DEFAULT, PAGE_MAX = 100, 512
DEPLOYMENTS_MAX = 5_000  # newest events of each namespace
Text = Annotated[str | None, QueryParameter(description="A filter; absent: all.")]


@get("/overview")
async def show_overview(
    request: Asked,
    span: Annotated[
        int, QueryParameter(description="Seconds that the rates cover.", ge=60, le=SPAN_S_MAX)
    ] = SPAN_S,
) -> Response[models.Overview]:
    """Show every log that the caller may read: entries, head, newest entry and its rate; alerts and the identity."""
    node, identity = node_of(request), identity_of(request)
    now_ms = time.time_ns() // 1_000_000
    logs = await node.read_long(lambda: list(_logs(node, identity, now_ms, span * 1_000)))
    facts = {
        "version": __version__,
        "now_ms": now_ms,
        "span_s": span,
        "identity": {
            "name": identity.name,
            "known": identity.known,
            "rights": [each.to_json() for each in identity.rights],
        },
        "guarded": node.auth.required,
        "warehouse": node.settings.warehouse is not None and identity.may("read", WAREHOUSE),
        "fault": node.fault,
        "uptime_s": time.monotonic() - node.started_s,
        "alerts": await node.read(_alerts, node, identity),
        "logs": logs,
    }
    return reply(facts)


def _logs(node: ServerNode, identity: Identity, now_ms: int, span_ms: int) -> Iterator[dict[str, Any]]:
    def row(engine: str, name: str, times: list[int], **facts: Any) -> dict[str, Any]:
        rates = [0] * BUCKETS
        for at in times:
            if 0 <= (place := (at - now_ms + span_ms) * BUCKETS // span_ms) < BUCKETS:
                rates[place] += 1
        newest = max(times, default=None)
        return {"log": f"{engine}/{name}", "newest_ms": newest, "rates": rates, **facts}

    for engine, layout in LAYOUTS.items():
        for name in node.log.topics(layout):
            if identity.may("read", f"{engine}/{name}"):
                with suppress(RopewalkError):  # one log that cannot be read hides no other
                    line = node.log.lines.line(layout, name)
                    newest = line.span(max(0, line.count - COUNTED_MAX), line.count)
                    times = [time_ms(each.ulid) for each in newest]
                    yield row(engine, name, times, entries=line.count, head=line.head)
    for name in channels(node.place.home):
        if identity.may("read", f"ledger/{name}"):
            with suppress(RopewalkError), open_channel(node.place.home, name) as channel:
                head = channel.head()
                heights = range(max(0, head.height - COUNTED_MAX // 40), head.height)
                records = [parse_record(channel.index.lines_of(each, None)[0]) for each in heights]
                times = [
                    each.header.timestamp_ns // 1_000_000
                    for each in records
                    for _ in range(each.header.envelope_count)
                ]
                shown = head.block_hash.hex() if head.height else None
                yield row("ledger", name, times, entries=head.envelopes, head=shown, blocks=head.height)
    for name in topics(node.place.home):
        if identity.may("read", f"gossip/{name}"):
            with suppress(RopewalkError), open_topic(node.place.home, name, create=False) as log:
                _, heads = log.get_clock()
                yield row(
                    "gossip", name, [], entries=len(log), head=heads[0] if heads else None, heads=len(heads)
                )


def _alerts(node: ServerNode, identity: Identity) -> list[dict[str, Any]]:
    """Return the alerts of the last watch round about channels that the caller may read."""
    state = read_state(StateFolder(node.place.home / "watch"))
    alerts = [{**each, "labels": dict(each["labels"])} for each in state["alerts"].values()]
    return [
        each
        for each in alerts
        if each.get("until_ns") is None
        and identity.may("read", f"ledger/{each['labels'].get('channel', '')}")
    ]


@get("/history")
async def read_history(
    request: Asked,
    log: Annotated[str, QueryParameter(description="shiplog/NS or messages/TOPIC.")],
    before: Annotated[str | None, QueryParameter(description="Only what lies below this ULID.")] = None,
    limit: Annotated[int, QueryParameter(description="How many at most.", ge=1, le=PAGE_MAX)] = PAGE_DEFAULT,
    kind: Annotated[
        str | None, QueryParameter(name="type", description="An event type; a final * matches any rest.")
    ] = None,
    author: Text = None,
    path: Annotated[
        str | None, QueryParameter(description="A payload path, or PATH=VALUE, such as `service=web`.")
    ] = None,
    find: Text = None,
) -> Response[models.History]:
    """Read events from the newest to the oldest, with author and trailer; `next_before` continues below them."""
    node = permitted(request, "read", log)
    layout, topic = git_log(log)
    below = parse(before) if before is not None else None

    def look() -> dict[str, Any]:
        rows, scanned, last = [], 0, None
        found = history(node.log, topic, layout, below)
        for event, commit in islice(found, SCANNED_MAX):
            scanned, last = scanned + 1, event
            shown = node.shown(event)  # before the filters: a search must not find what is not shown
            if _fits(shown, commit, kind, author, path, find):
                rows.append(_history_row(shown, commit))
                if len(rows) == limit:
                    break
        more = last is not None and last.height > 0
        return {"events": rows, "next_before": last.ulid if last and more else None, "scanned": scanned}

    return reply(await node.read(look))


def _history_row(event: Event, commit: Commit) -> dict[str, Any]:
    return {
        "ulid": event.ulid,
        "content_id": event.content_id,
        "commit": event.commit,
        "parents": list(commit.parents),
        "height": event.height,
        "author": f"{commit.author.name} <{commit.author.mail}>",
        "envelope": event.envelope,
        "trailer": parse_message(commit.message).trailer,
        **({"withheld": True} if event.withheld else {}),
    }


def _fits(
    event: Event, commit: Commit, kind: str | None, author: str | None, path: str | None, find: str | None
) -> bool:
    """Return whether an event passes all filters that are set."""
    if kind is not None and not (
        event.type.startswith(kind[:-1]) if kind.endswith("*") else event.type == kind
    ):
        return False
    if author is not None:
        who = (parse_message(commit.message).trailer or {}).get("who")
        if author.lower() not in f"{commit.author.name} {commit.author.mail} {who}".lower():
            return False
    if find is not None and find.lower() not in event.raw.decode("utf-8", "replace").lower():
        return False
    if path is None:
        return True
    names, equals, wanted = path.partition("=")
    value: Any = event.payload
    for name in names.split("."):
        if isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            return False
    shown = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return not equals or shown == wanted


@get("/deployments")
async def list_deployments(
    request: Asked,
    ns: Annotated[list[str] | None, QueryParameter(description="A namespace; may repeat.")] = None,
) -> Response[models.Deployments]:
    """List deployments of the namespaces that the caller may read, newest first, and what is deployed now."""
    node, identity = node_of(request), identity_of(request)
    for each in ns or ():
        identity.require("read", f"shiplog/{each}")

    def look() -> dict[str, Any]:
        rows = []
        for name in ns or ():
            rows += list(islice(_deployments(node, name), DEPLOYMENTS_MAX))
        for name in node.log.topics(SHIPLOG) if not ns else ():
            if identity.may("read", f"shiplog/{name}"):
                with suppress(RopewalkError):  # one log that cannot be read hides no other
                    rows += list(islice(_deployments(node, name), DEPLOYMENTS_MAX))
        current = current_rows(rows)
        rows.sort(key=lambda row: str(row["ulid"]), reverse=True)
        return {"deployments": rows, "current": [row["ulid"] for row in current]}

    return reply(await node.read_long(look))


def _deployments(node: ServerNode, ns: str) -> Iterator[dict[str, Any]]:
    for stored, commit in islice(history(node.log, ns, SHIPLOG), SCANNED_MAX):
        event = node.shown(stored)
        trailer = parse_message(commit.message).trailer or {}
        row = deployment_row(event, trailer)
        if isinstance(row["service"], str) and isinstance(row["status"], str):
            row["who"] = row["who"] or commit.author.name
            yield {**row, "when": trailer.get("when"), "why": trailer.get("why"), "payload": event.payload}


ROUTES = Router("/", route_handlers=[show_overview, read_history, list_deployments], tags=["overview"])
