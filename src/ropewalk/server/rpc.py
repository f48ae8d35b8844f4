"""JSON lines RPC (`gatosd rpc`): one request a line, one answer a line, in order."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ropewalk.errors import SPELLINGS, Invalid, NotFound, RopewalkError, TooLarge
from ropewalk.gitlog.consumers.consumers import set_cursor
from ropewalk.gitlog.consumers.cursor import Cursor, read_cursor
from ropewalk.gitlog.core.envelope import Draft, Event, check_numbers
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.core.reading import LIMIT_DEFAULT, messages_answer
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel import jcs
from ropewalk.server.group_reading import read_for_group

LINE_BYTES_MAX = 4 << 20
Params = dict[str, Any]


class Rpc:
    """The methods over one repository."""

    def __init__(self, log: GitRepository) -> None:
        self._log = log
        self._move: Callable[[], None] | None = None  # of the last answer
        self._methods: dict[str, Callable[[Params], Any]] = {
            "shiplog.append": lambda params: self._append(SHIPLOG, "ns", params),
            "shiplog.read": self._read,
            "shiplog.tail": self._tail,
            "shiplog.checkpoint.set": self._set_checkpoint,
            "shiplog.checkpoint.get": self._get_checkpoint,
            "messages.read": self._read_messages,
            "messages.publish": lambda params: self._append(MESSAGES, "topic", params),
        }

    def answer_all(self, lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        """Answer every line but blank ones. A checkpoint moves when the next answer is asked for."""
        for line in lines:
            if line.strip():
                yield self.answer(line)
                if self._move is not None:
                    with contextlib.suppress(RopewalkError):  # another reader of the group was faster
                        self._move()

    def answer(self, line: bytes) -> dict[str, Any]:
        """Answer one request; whatever is wrong with it is an answer, too."""
        self._move = None
        name: Any = None
        method = ""
        try:
            if len(line) > LINE_BYTES_MAX:
                raise TooLarge(f"a request has {len(line)} bytes; at most {LINE_BYTES_MAX} are taken")
            request: Any = jcs.parse(line, bytes_max=LINE_BYTES_MAX)
            if not isinstance(request, dict) or not request.keys() <= {"id", "method", "params"}:
                raise Invalid('a request must be an object with "id", "method" and "params"')
            name, method = request.get("id"), request.get("method", "")
            params = request.get("params", {})
            if not isinstance(method, str) or method not in self._methods:
                raise NotFound(
                    f"there is no method {str(method)[:80]!r}; there are: {', '.join(self._methods)}"
                )
            if not isinstance(params, dict):
                raise Invalid('"params" must be an object')
            check_numbers(line)
            return {"ok": True, "id": name, "result": self._methods[method](params)}
        except RopewalkError as error:
            code = error.code
            if str(method).startswith("messages.") and code in SPELLINGS:
                code = SPELLINGS[code].messages
            return {"ok": False, "id": name, "code": code, "reason": error.detail}

    def _append(self, layout: Layout, member: str, params: Params) -> dict[str, Any]:
        topic = _text(params, member)
        known = {member, "event", "message"}
        document = params.get("event", params.get("message"))
        if not isinstance(document, dict) or not params.keys() <= known or len(params) != 2:
            raise Invalid(f'params must be {{"{member}", "{"event" if layout is SHIPLOG else "message"}"}}')
        (outcome,) = self._log.append_all(topic, [Draft(document)], layout=layout)
        if isinstance(outcome, RopewalkError):
            raise outcome
        return {
            "ulid": outcome.ulid,
            "content_id": outcome.content_id,
            "commit": outcome.commit,
            member: outcome.topic,
            "replayed": outcome.replayed,
        }

    def _read(self, params: Params) -> dict[str, Any]:
        page = self._log.read(_text(params, "ns"), _maybe(params, "since"), _limit(params, "limit"))
        return {"events": [_event(each) for each in page.events], "next_since": page.next_since}

    def _tail(self, params: Params) -> dict[str, Any]:
        names = params.get("ns")
        if not isinstance(names, list) or not names or not all(isinstance(each, str) for each in names):
            raise Invalid('"ns" must be a list of namespaces')
        found = self._log.tail(names, limit_per_topic=_limit(params, "limit_per_ns", 10))
        return {
            "events": [{"ns": each.topic, **_event(each)} for each in found],
            "watermarks": {each.topic: str(each.ulid) for each in found},
            "next_since": found[-1].ulid if found else None,
        }

    def _set_checkpoint(self, params: Params) -> dict[str, Any]:
        to = _maybe(params, "commit") or _text(params, "ulid")
        found = self._log.store.resolve(to.lower()) if params.get("commit") is not None else to
        return _checkpoint(set_cursor(self._log, _text(params, "group"), _text(params, "ns"), found))

    def _get_checkpoint(self, params: Params) -> dict[str, Any]:
        group, ns = _text(params, "group"), _text(params, "ns")
        cursor = read_cursor(self._log.store, group, ns)
        if cursor is None:
            raise NotFound(f"group {group!r} has no checkpoint in {ns!r}", group=group, ns=ns)
        return _checkpoint(cursor)

    def _read_messages(self, params: Params) -> dict[str, Any]:
        topic, group = _text(params, "topic"), _maybe(params, "group")
        since, limit = _maybe(params, "since_ulid"), _limit(params, "limit")
        page, self._move = read_for_group(self._log, topic, since, limit, group)
        return messages_answer(page, topic, group if self._move is not None else None)


def _checkpoint(cursor: Cursor) -> dict[str, Any]:
    return {"ref": cursor.ref, "ulid": cursor.ulid or None, "commit": cursor.commit}


def _event(event: Event) -> dict[str, Any]:
    return {
        "ulid": event.ulid,
        "content_id": event.content_id,
        "commit": event.commit,
        "envelope": event.envelope,
    }


def _text(params: Params, name: str) -> str:
    found = params.get(name)
    if not isinstance(found, str) or not found:
        raise Invalid(f'params must have the string "{name}", got {json.dumps(found)[:60]}')
    return found


def _maybe(params: Params, name: str) -> str | None:
    return None if params.get(name) is None else _text(params, name)


def _limit(params: Params, name: str, default: int = LIMIT_DEFAULT) -> int:
    found = params.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int):
        raise Invalid(f'"{name}" must be an integer')
    return found
