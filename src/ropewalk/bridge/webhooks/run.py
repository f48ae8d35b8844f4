"""Deliver what is new to the webhooks of a repository, at least once each."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from typing import Any

from ropewalk.bridge.brokers.loops import find_log
from ropewalk.bridge.webhooks.forms import ATTEMPTS_MAX, body_of, pause_ms, sign
from ropewalk.bridge.webhooks.hooks import RETRIES_MAX, HookState, Retry, Webhook, Webhooks, check_hook
from ropewalk.bridge.webhooks.post import PostResult, post
from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import Denied, NotFound, RopewalkError, Unavailable
from ropewalk.gitlog.core.envelope import Event
from ropewalk.gitlog.privacy.rules import public_event
from ropewalk.gitlog.repository.repository import GitRepository

BATCH = 64
IDLE_S = 0.5
HOOKS_AT_ONCE = 8
HEADER = re.compile(r"[!-~][ -~]{0,199}")
_journal = logging.getLogger("ropewalk.webhooks")


@dataclass(slots=True)
class Delivered:
    """What a round brought."""

    delivered: int = 0
    failed: int = 0
    dead: int = 0


class WebhookRunner:
    """Delivers to all hooks. `now_ms` is the clock, `chance` a number from 0 to 1 for jitter."""

    def __init__(
        self, repository: GitRepository, *, now_ms: Callable[[], int], chance: Callable[[], float]
    ) -> None:
        self._repository, self._now_ms, self._chance = repository, now_ms, chance
        self._stop = threading.Event()
        self._warned: dict[str, str] = {}
        store = repository.store
        self.hooks = Webhooks(store.place.home, store.disk, now_ms)

    def check(self, hook: Webhook) -> None:
        """Raise if a hook cannot be kept as it is."""
        check_hook(hook)
        find_log(self._repository, hook.log)

    def add(self, hook: Webhook, *, from_start: bool = False) -> None:
        """Keep a new hook. It delivers new events, or all that the log holds."""
        log = find_log(self._repository, hook.log)
        newest = (
            self._repository.tail([log.topic], limit_per_topic=1, layout=log.layout)
            if not from_start and log.topic in self._repository.topics(log.layout)
            else []
        )
        self.hooks.add(hook, newest[0].ulid if newest else "")

    def rows(self) -> list[dict[str, Any]]:
        """Return every hook with its position, waiting retries and dead letters."""
        rows = []
        for hook in self.hooks.all():
            state = self.hooks.state(hook.id)
            counts = {"retrying": len(state.retries), "dead": len(self.hooks.dead(hook.id))}
            rows.append({**hook.to_json(), "ulid": state.ulid, **counts})
        return rows

    def once(self) -> Delivered:
        """Deliver what is new and what is due; return without waiting for later attempts."""
        with ThreadPoolExecutor(HOOKS_AT_ONCE) as pool:
            rounds = list(pool.map(self._round, self.hooks.ids()))
        return (
            Delivered(*(sum(column) for column in zip(*map(astuple, rounds), strict=True)))
            if rounds
            else Delivered()
        )

    def _round(self, hook: str) -> Delivered:
        """Deliver to one hook; what is wrong with it stops no other."""
        done = Delivered()
        try:
            with hold_folder(self.hooks.folder(hook), 0.0):
                self._deliver(self.hooks.get(hook), done)
                self.hooks.seen(hook)
        except Unavailable:
            pass  # another process delivers it
        except (RopewalkError, OSError) as error:
            if self._warned.get(hook) != str(error):  # a round comes twice a second
                self._warned[hook] = str(error)
                _journal.warning("webhook %s: %s", hook, error)
            with contextlib.suppress(RopewalkError, OSError):
                self.hooks.seen(hook, str(error))
        return done

    def run(self, stop: threading.Event, told: Callable[[Delivered], None] = lambda _done: None) -> None:
        """Deliver until `stop` is set; deliveries under way are completed."""
        self._stop = stop
        while not stop.is_set():
            done = self.once()
            if done.delivered or done.failed or done.dead:
                told(done)
            stop.wait(IDLE_S)

    def _deliver(self, hook: Webhook, done: Delivered) -> None:
        state = self._retry(hook, self.hooks.state(hook.id), done)
        log = find_log(self._repository, hook.log)
        while len(state.retries) < RETRIES_MAX and not (hook.ordered and state.retries):
            try:
                events = log.after(state.ulid or None)[:BATCH]
            except NotFound:
                return  # the log is not there yet
            if not events:
                return
            for event in events:
                if self._stop.is_set():
                    return
                state, error = self._attempt(hook, state, event, 0, done)
                state = replace(state, ulid=event.ulid)
                self.hooks.save_state(hook, state, moved=int(not error), error=error)
                if hook.ordered and state.retries:
                    break

    def _retry(self, hook: Webhook, state: HookState, done: Delivered) -> HookState:
        for due in [each for each in state.retries if each.due_ms <= self._now_ms()]:
            if self._stop.is_set():
                break
            state = replace(state, retries=tuple(each for each in state.retries if each != due))
            event = find_log(self._repository, hook.log).find(due.ulid)
            error = None
            if event is not None:
                state, error = self._attempt(hook, state, event, due.failed, done)
            self.hooks.save_state(hook, state, moved=int(error == ""), error=error)
        return state

    def _attempt(
        self, hook: Webhook, state: HookState, event: Event, failed: int, done: Delivered
    ) -> tuple[HookState, str]:
        """Send one event; return the state with its next attempt, if there is to be one, and why it failed."""
        try:
            result = self._send(hook, event, failed + 1)
        except (
            RopewalkError,
            ValueError,
            OverflowError,
            OSError,
        ) as error:  # an event that no form can carry
            failed, result = ATTEMPTS_MAX, PostResult(None, f"cannot be sent: {error}"[:200])
        self.hooks.record(
            hook.id,
            {
                "ulid": event.ulid,
                "attempt": failed + 1,
                "at_ms": self._now_ms(),
                "status": result.status,
                "detail": result.detail,
            },
        )
        if result.ok:
            done.delivered += 1
            return state, ""
        why = result.detail if result.status is None else f"{result.status} {result.detail}"
        pause = pause_ms(failed + 1, self._chance())
        if pause is None:
            done.dead += 1
            self.hooks.bury(
                hook.id,
                event.ulid,
                {"attempts": failed + 1, "status": result.status, "detail": result.detail},
            )
            return state, why
        done.failed += 1
        again = Retry(event.ulid, failed + 1, self._now_ms() + pause)
        return replace(state, retries=(*state.retries, again)), why

    def _send(self, hook: Webhook, event: Event, attempt: int) -> PostResult:
        try:
            event = public_event(self._repository.privacy.policy(), event)
        except (
            Denied,
            Unavailable,
        ) as error:  # rules that cannot be read may be mended before the next attempt
            return PostResult(None, error.detail)
        body, media = body_of(event, hook.log, hook.form)
        stamp = self._now_ms() // 1000
        headers = {
            "Content-Type": media,
            "User-Agent": "ropewalk-webhook",
            "X-GATOS-Event": event.type if HEADER.fullmatch(event.type) else json.dumps(event.type),
            "X-GATOS-Delivery": event.ulid,
            "X-GATOS-Attempt": str(attempt),
            "X-GATOS-Timestamp": str(stamp),
            "X-GATOS-Signature": sign(bytes.fromhex(hook.secret), stamp, body),
        }
        if hook.previous:
            headers["X-GATOS-Signature-Previous"] = sign(bytes.fromhex(hook.previous), stamp, body)
        return post(hook.url, body, headers, allow_private=hook.allow_private)
