"""Namespaces (S0), messages (S1) and consumer groups over HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from litestar import Response, Router, delete, get, post, put
from litestar.background_tasks import BackgroundTask
from litestar.params import FromPath, FromQuery, QueryParameter

from ropewalk.bridge.governance.guard import is_governed, require_ungoverned
from ropewalk.errors import Invalid, InvalidEnvelope, NotFound, RopewalkError, TooLarge
from ropewalk.gitlog.consumers.consumers import cursor_status, reset_cursor, set_cursor
from ropewalk.gitlog.consumers.cursor import Cursor, find_cursor, kind_kept
from ropewalk.gitlog.core.envelope import Draft, Event, check_numbers
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.core.reading import LIMIT_DEFAULT, EventPage, interleave, messages_answer
from ropewalk.gitlog.repository.recent import find_event
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import content_id
from ropewalk.kernel.ulid import parse
from ropewalk.server.append_queue import Outcome, outcome_json, spelled
from ropewalk.server.auth.rights import Identity
from ropewalk.server.consumer_lag import EVERY_S, consumer_rows
from ropewalk.server.group_reading import read_for_group
from ropewalk.server.http import models
from ropewalk.server.http.problems import HttpRefusal
from ropewalk.server.http.replies import (
    Asked,
    body_of,
    check_media_type,
    event_bytes,
    git_log,
    has_left,
    identity_of,
    mark_durable,
    node_of,
    not_modified,
    parse_items,
    permitted,
    receipts,
    reply,
    target_of,
)
from ropewalk.server.idempotency import KeyedRequest, keyed_request
from ropewalk.server.node import ServerNode

NAMESPACES_MAX = 64  # of one tail
PAGE_BYTES = 8 << 20  # after which a page ends
TAIL_BYTES_MAX = 32 << 20
Since = Annotated[str | None, QueryParameter(description="Only what comes after this ULID.")]
Limit = Annotated[int, QueryParameter(description="How many at most; above 512 counts as 512.")]


@dataclass(slots=True)
class Appending:
    """A request to append, read."""

    drafts: list[Draft | RopewalkError]
    many: bool
    key: KeyedRequest | None


def prepare(
    identity: Identity,
    layout: Layout,
    topic: str,
    scope: Mapping[str, Any],
    headers: Mapping[str, str],
    raw: bytes,
) -> Appending:
    """Read a request to append and refuse what is wrong with it."""
    identity.require("append", f"{layout.name}/{topic}")
    check_media_type(headers)
    key = headers.get("idempotency-key")
    request = keyed_request(identity.name, target_of(scope), key, raw) if key is not None else None
    items, many = parse_items(raw)
    check_numbers(raw)
    return Appending([_draft(each) for each in items], many, request)


def rows_of(
    node: ServerNode, layout: Layout, outcomes: Sequence[Outcome], key: KeyedRequest | None
) -> Sequence[dict[str, Any]]:
    """Return what the answer to an append shows, and tell the stream that there is news."""
    if not outcomes and key is not None and key.outcomes is not None:  # a request with the key came before
        return key.outcomes
    node.metrics.count_outcomes(layout.name, outcomes)
    node.wake_stream()
    if key is not None and key.outcomes is not None:
        return key.outcomes
    return [outcome_json(spelled(layout, each)) for each in outcomes]


async def append_to(request: Asked, layout: Layout, topic: str, name: dict[str, str]) -> Response[Any]:
    """Append the body to a log and answer with receipts."""
    node, identity = node_of(request), identity_of(request)
    identity.require("append", f"{layout.name}/{topic}")
    raw = await body_of(request)
    made = prepare(identity, layout, topic, request.scope, request.headers, raw)
    outcomes = await node.appends.append(layout, topic, made.drafts, made.key, len(raw))
    mark_durable(request, layout.name, outcomes)
    return receipts(rows_of(node, layout, outcomes, made.key), made.many, name)


def _draft(item: Any) -> Draft | RopewalkError:
    if not isinstance(item, dict):
        return InvalidEnvelope("an event must be a JSON object", where="", schema="shiplog/event_envelope")
    return Draft(item)


@post("/shiplog/{ns:str}/events", status_code=201)
async def append_events(request: Asked, ns: FromPath[str]) -> Response[models.EventReceipt]:
    """Append an event, or an array of events, to a namespace. The answer comes when they are on disk."""
    return await append_to(request, SHIPLOG, ns, {"ns": ns})


@get("/shiplog/{ns:str}/events")
async def read_events(
    request: Asked, ns: FromPath[str], since: Since = None, limit: Limit = LIMIT_DEFAULT
) -> Response[models.EventList]:
    """Read a page of events in order."""
    node = permitted(request, "read", f"shiplog/{ns}")
    page = await node.read(node.log.read, ns, since, limit, bytes_max=PAGE_BYTES)
    return _page(request, replace(page, events=tuple(map(node.shown, page.events))), ns)


def _page(request: Asked, page: EventPage, topic: str) -> Response[Any]:
    ends = (page.events[0].commit, page.events[-1].commit) if page.events else ("", "")
    withheld = [content_id(event.raw) for event in page.events if event.withheld]
    parts = (topic, *ends, page.next_since or "", *withheld)
    etag = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    known = not_modified(request, etag)
    if known is not None:
        return known
    rows = b",".join(map(event_bytes, page.events))
    since = b'"%s"' % page.next_since.encode() if page.next_since is not None else b"null"
    return reply(b'{"events":[%s],"next_since":%s}' % (rows, since), etag=etag)


@get("/shiplog/{ns:str}/events/{ulid:str}")
async def show_event(request: Asked, ns: FromPath[str], ulid: FromPath[str]) -> Response[models.ShownEvent]:
    """Show one event with its trailer, author and note."""
    node = permitted(request, "read", f"shiplog/{ns}")

    def look() -> dict[str, Any]:
        if node.log.lines.line(SHIPLOG, ns).find(parse(ulid)) is None:
            raise NotFound(f"{ulid} is not an event of {ns}", topic=ns, event=ulid)
        found = find_event(node.log, ulid)
        event = node.shown(found.event)
        return {
            "ns": event.topic,
            "ulid": event.ulid,
            "content_id": event.content_id,
            "commit": event.commit,
            "envelope": event.envelope,
            "height": event.height,
            "trailer": found.trailer,
            "author": found.author,
            "time": found.time,
            "note": found.note,
            **({"withheld": True} if event.withheld else {}),
        }

    shown = await node.read(look)
    # A note can be attached later; the event itself never changes.
    etag = shown["content_id"].removeprefix("blake3:")
    if shown["note"] is not None:
        etag += "-" + hashlib.sha256(shown["note"].encode()).hexdigest()[:16]
    fixed = shown["note"] is not None and "withheld" not in shown
    if "withheld" in shown:
        etag += "-" + content_id(jcs.encode_foreign(shown["envelope"])).removeprefix("blake3:")[:16]
    return not_modified(request, etag, immutable=fixed) or reply(
        jcs.encode_foreign(shown), etag=etag, immutable=fixed
    )


def _tail(node: ServerNode, names: list[str], limit: int) -> list[Event]:
    pages: dict[str, list[Event]] = {}
    size = 0
    for name in names:
        pages[name] = node.log.tail([name], limit_per_topic=limit)
        size += sum(len(event.raw) for event in pages[name])
        if size > TAIL_BYTES_MAX:
            raise TooLarge(
                f"the newest events have more than {TAIL_BYTES_MAX} bytes",
                limit=TAIL_BYTES_MAX,
                advice="Ask for fewer namespaces, or a smaller limit_per_ns.",
            )
    return list(interleave(pages))


@get("/shiplog/tail")
async def tail_events(
    request: Asked, ns: FromQuery[list[str]], limit_per_ns: FromQuery[int] = 10
) -> Response[models.Tail]:
    """Read the newest events of several namespaces, one of each in turn."""
    node = node_of(request)
    if len(ns) > NAMESPACES_MAX or not 1 <= limit_per_ns <= 512:
        raise HttpRefusal(400, f"at most {NAMESPACES_MAX} namespaces and 1 to 512 events of each")
    for each in ns:
        identity_of(request).require("read", f"shiplog/{each}")
    found = await node.read(_tail, node, list(dict.fromkeys(ns)), limit_per_ns)
    marks = {event.topic: str(event.ulid) for event in found}
    rows = b",".join(event_bytes(node.shown(event), event.topic) for event in found)
    since = jcs.encode(found[-1].ulid if found else None)
    return reply(b'{"events":[%s],"watermarks":%s,"next_since":%s}' % (rows, jcs.encode(marks), since))


@post("/messages", status_code=201)
async def publish_message(request: Asked, topic: FromQuery[str]) -> Response[models.MessageReceipt]:
    """Publish a message, or an array of messages, to a topic."""
    try:
        return await append_to(request, MESSAGES, topic, {"topic": topic})
    except RopewalkError as error:
        raise spelled(MESSAGES, error) from error


@get("/messages")
async def read_messages(
    request: Asked,
    topic: FromQuery[str],
    since_ulid: Since = None,
    limit: Limit = LIMIT_DEFAULT,
    group: Annotated[
        str | None,
        QueryParameter(description="Read for this consumer group; its checkpoint moves behind the page."),
    ] = None,
) -> Response[models.MessagePage]:
    """Read messages in order, as `messages.read` of S1 answers."""
    node = permitted(request, "read", f"messages/{topic}")
    if group is not None:
        identity_of(request).require("checkpoint", f"messages/{topic}")
    try:
        if group is not None:
            await node.moves.settled(group, topic)
        page, move = await node.read(read_for_group, node.log, topic, since_ulid, limit, group, PAGE_BYTES)
    except RopewalkError as error:
        raise spelled(MESSAGES, error) from error
    page = replace(page, events=tuple(map(node.shown, page.events)))
    found = reply(messages_answer(page, topic, group if move is not None else None))
    if move is not None and group is not None and not await has_left(request):
        node.moves.begin(group, topic)
        # After the answer was sent: a checkpoint never runs ahead of what was handed over.
        found.background = BackgroundTask(node.moves.carry_out, group, topic, move)
    return found


def _cursor(node: ServerNode, group: str, log: str) -> Cursor:
    """Return the checkpoint of a group in a log. Logs of both engines share the name of its ref."""
    layout, topic = git_log(log)
    cursor = find_cursor(node.log.store, group, topic)
    if cursor is None or cursor.by not in (kind_kept(layout), "nothing"):
        raise NotFound(f"group {group!r} has no checkpoint in {log}", group=group, log=log)
    return cursor


@get("/consumers")
async def list_consumers(request: Asked) -> Response[models.Consumers]:
    """List every consumer group with its position and how far it is behind."""
    node, may_read = node_of(request), partial(identity_of(request).may, "read")
    return reply({"consumers": await node.read(consumer_rows, node.log, may_read)})


@get("/consumer-lag")
async def show_lag(request: Asked) -> Response[models.ConsumerLags]:
    """Show how far consumer groups were behind since the server started, as far as it keeps samples."""
    node, may_read = node_of(request), partial(identity_of(request).may, "read")
    return reply({"every_s": EVERY_S, "groups": node.lag.rows(may_read)})


LogName = Annotated[str, QueryParameter(description="The log: shiplog/NS or messages/TOPIC.")]


@get("/consumers/{group:str}")
async def show_consumer(request: Asked, group: FromPath[str], log: LogName) -> Response[models.Consumer]:
    """Show where a consumer group is in a log."""
    node = permitted(request, "read", log)
    return reply(await node.read(lambda: cursor_status(node.log, _cursor(node, group, log)) | {"log": log}))


@put("/consumers/{group:str}")
async def set_consumer(request: Asked, group: FromPath[str], log: LogName) -> Response[models.Checkpoint]:
    """Set a checkpoint to `{"ulid"}` or `{"commit"}`. Going back needs the right admin."""
    node, identity = node_of(request), identity_of(request)
    identity.require("checkpoint", log)
    layout, topic = git_log(log)
    document: Any = jcs.parse(await body_of(request))
    if not isinstance(document, dict) or document.keys() not in ({"ulid"}, {"commit"}):
        raise Invalid('the body must be {"ulid": …} or {"commit": …}')
    (to,) = document.values()
    if not isinstance(to, str):
        raise Invalid("ulid and commit must be strings")
    reset = identity.may("admin", log) and not is_governed(node.place, "consumer.reset")
    if reset:
        await node.record_act("consumer.set", identity.name, {"group": group, "log": log, "to": to})
    cursor = await node.read(
        set_cursor, node.log, group, topic, to, layout=layout, reset=reset, other_kind=False
    )
    return reply({"ref": cursor.ref, "ulid": cursor.ulid or None, "commit": cursor.commit})


@delete("/consumers/{group:str}", status_code=200)
async def delete_consumer(request: Asked, group: FromPath[str], log: LogName) -> Response[models.Checkpoint]:
    """Delete a checkpoint: the group begins anew. Needs the right admin, or a server on loopback."""
    node, identity = node_of(request), identity_of(request)
    identity.require("admin" if node.auth.required else "checkpoint", log)
    require_ungoverned(node.place, "consumer.reset")
    if node.auth.required:
        await node.record_act("consumer.delete", identity.name, {"group": group, "log": log})

    def drop() -> dict[str, Any]:
        change = reset_cursor(node.log, group, _cursor(node, group, log).topic, "beginning")
        return {"ref": change["ref"], "ulid": None, "commit": None}

    return reply(await node.read(drop))


ROUTES = Router(
    "/",
    route_handlers=[
        append_events,
        read_events,
        show_event,
        tail_events,
        publish_message,
        read_messages,
        list_consumers,
        show_lag,
        show_consumer,
        set_consumer,
        delete_consumer,
    ],
    tags=["git logs"],
)
