"""One round of a watch: look at what is new, raise and resolve alerts, send them, and do what is due.

One round runs at a time in a repository, also across processes. An alert is written down before it is sent, and sent
until it is taken: a crash between the two sends it again, and channels take it once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.disk.state_folder import StateFolder
from ropewalk.errors import Invalid, NotFound, Replayed, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.note import claimed_head
from ropewalk.ledger.archive.pack import pack_channel
from ropewalk.ledger.archive.write import archive_channel
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.settings import FOLDER, channels, create_channel, read_settings
from ropewalk.ledger.channel.witnessed import read_witness_policy, read_witnessed
from ropewalk.ledger.evidence.recheck import EvidenceTally
from ropewalk.ledger.evidence.settings import channel_trust
from ropewalk.ledger.keys.rotate import key_notices, open_sealing
from ropewalk.ledger.transparency.witnessing import WitnessClient
from ropewalk.ledger.versions.lifecycle import notices, version_to_write
from ropewalk.server.watch.alerts import (
    Alert,
    alert_envelope,
    alerts_of,
    channel_alert,
    for_alertmanager,
    observation_envelope,
    post,
)
from ropewalk.server.watch.signals import ChannelSignals, Signal

STATE = "state.json"
LOCK_WAIT_S = 30.0
WRITER_WAIT_S = 30.0
DAY_NS = 86_400 * 10**9
OBSERVE_NS = 3_600 * 10**9  # unchanged signals are recorded again after an hour
NODE_KEY = "node"
NOTICE_DAYS = [30, 14, 7]
MEMBERS = {
    "version", "interval_seconds", "alerts", "observations", "alertmanager", "webhooks", "freshness_seconds",
    "notice_days", "retention", "server",
}  # fmt: skip
_journal = logging.getLogger("ropewalk.watch")
_journal.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """What to watch, and where alerts go."""

    interval_s: float = 30.0
    alert_channel: str | None = None
    observation_channel: str | None = None
    alertmanager: str | None = None
    webhooks: tuple[str, ...] = ()
    freshness_s: float = 86_400.0
    keep_days: float | None = None
    archive: str | None = None


def parse_watch(document: dict[str, Any]) -> WatchConfig:
    """Read a watch configuration; every member is optional.

    >>> parse_watch({"version": 1, "interval_seconds": 5}).interval_s
    5
    """
    if unknown := sorted(document.keys() - MEMBERS):
        raise Invalid(f"watch configuration: unknown member {unknown[0]!r:.60}")
    if document.get("notice_days", NOTICE_DAYS) != NOTICE_DAYS:
        raise Invalid(f'"notice_days" must be {NOTICE_DAYS}, the days at which notices are due')
    retention = _object(document, "retention")
    return WatchConfig(
        interval_s=_number(document, "interval_seconds", 30.0),
        alert_channel=_text(_object(document, "alerts"), "channel"),
        observation_channel=_text(_object(document, "observations"), "channel"),
        alertmanager=_text(_object(document, "alertmanager"), "url"),
        webhooks=tuple(
            url for each in document.get("webhooks", []) if (url := _text(dict(each), "url")) is not None
        ),
        freshness_s=_number(document, "freshness_seconds", 86_400.0),
        keep_days=_number(retention, "keep_days", 0) or None,
        archive=_text(retention, "archive"),
    )


def _object(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name, {})
    if not isinstance(found, dict):
        raise Invalid(f'"{name}" must be an object')
    return found


def _text(document: dict[str, Any], name: str) -> str | None:
    found = document.get(name)
    if found is not None and not isinstance(found, str):
        raise Invalid(f'"{name}" must be a string')
    return found


def _number(document: dict[str, Any], name: str, default: float) -> float:
    found = document.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int | float) or found < 0:
        raise Invalid(f'"{name}" must be a number of 0 or more')
    return found


@dataclass(frozen=True, slots=True)
class Round:
    """What a round found: signals, alerts that fire, and what could not be done."""

    signals: tuple[Signal, ...]
    firing: tuple[dict[str, Any], ...]
    failures: tuple[str, ...]
    acts: tuple[str, ...]
    unwitnessed: tuple[tuple[str, int], ...] = ()
    witness_failures: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the round as `watch --once` prints it."""
        return {
            "signals": [signal.to_json() for signal in self.signals],
            "alerts": [for_alertmanager(each) for each in self.firing],
            "acts": list(self.acts),
            "failures": list(self.failures),
            "unwitnessed": dict(self.unwitnessed),
        }


class Watch:
    """Watches the channels of one repository."""

    def __init__(
        self,
        home: Path,
        config: WatchConfig,
        *,
        channel_keys: Callable[[str], Sequence[SigningKey]],
        signing_key: Callable[[str], SigningKey],
        now_ns: Callable[[], int],
        send: Callable[[str, Any], None] = post,
    ) -> None:
        self._home = home
        self._config = config
        self._keys, self._key = channel_keys, signing_key
        self._now_ns = now_ns
        self._send = send
        self._folder = StateFolder(home / "watch")
        self._failures: list[str] = []
        self._acts: list[str] = []

    def round(self) -> Round:
        """Do one round; rounds of other processes are waited for."""
        self._folder.make()
        with self._folder.locked(LOCK_WAIT_S):
            self._failures, self._acts = [], []
            state = self.state()
            now = self._now_ns()
            signals, alerts = self._look(state, now)
            waiting, asked = self._witness()
            self._settle(state, alerts + asked, now)
            self._save(state)  # before anything is sent
            self._tell(state, signals, now)
            self._retain(state, now)
            state["last_ns"], state["failures"] = now, self._failures
            self._save(state)
            firing = tuple(each for each in state["alerts"].values() if each.get("until_ns") is None)
            return Round(
                tuple(signals), firing, tuple(self._failures), tuple(self._acts), waiting, len(asked)
            )

    def state(self) -> dict[str, Any]:
        """Return what is known from earlier rounds."""
        empty: dict[str, Any] = {"version": 1, "channels": {}, "alerts": {}}
        try:
            found: Any = json.loads(self._folder.read(STATE))
        except (NotFound, ValueError):  # it is made again from the channels
            return empty
        return found if isinstance(found, dict) and found.get("version") == 1 else empty

    def _save(self, state: dict[str, Any]) -> None:
        self._folder.replace(STATE, json.dumps(state).encode())

    def _look(self, state: dict[str, Any], now: int) -> tuple[list[Signal], list[Alert]]:
        signals: list[Signal] = []
        alerts: list[Alert] = []
        for channel in channels(self._home):
            try:
                known = ChannelSignals(state["channels"].get(channel))
                trust = channel_trust(self._home, channel)
                judges = EvidenceTally(trust)
                with open_channel(self._home, channel) as reading:
                    height = reading.head().height
                    if height < known.height:
                        raise Invalid(f"it has {height} blocks and had {known.height}")
                    if height > known.height:
                        known.follow(reading.blocks(known.height, height - 1), trust, judges, now)
                    due = key_notices(reading, now)
                alerts += [channel_alert("LifetimeEnds", "ticket", channel, text) for text in due]
                signals += known.measure(channel, judges, now, self._config.freshness_s)
                state["channels"][channel] = known.to_json()
            except RopewalkError as error:
                alerts.append(channel_alert("ChannelUnreadable", "page", channel, error.detail))
        for notice in notices(self._home, now):
            text = f"version {notice['version']} ends on {notice['sunset']}"
            alerts.append(Alert("VersionEnds", "ticket", (("version", str(notice["version"])),), text))
        return signals, alerts + alerts_of(signals)

    def _witness(self) -> tuple[tuple[tuple[str, int], ...], list[Alert]]:
        """Ask the witnesses of every channel that has some; return the blocks left without them, and alerts."""
        waiting: list[tuple[str, int]] = []
        alerts: list[Alert] = []
        for channel in channels(self._home):
            closed = False
            try:
                policy = read_witness_policy(self._home / FOLDER / channel)
                if policy is None:
                    continue
                closed = policy.unwitnessed_max is not None
                with open_channel(self._home, channel) as reading:
                    note, height = read_witnessed(reading.folder), reading.head().height
                    left = height - (0 if note is None else claimed_head(note)[0].size)
                    waiting.append((channel, left))
                    if left:
                        WitnessClient(reading, self._keys(channel)[0]).collect(all_of_them=True).require()
                        waiting[-1] = (channel, 0)
            except RopewalkError as error:
                alerts.append(
                    channel_alert("Unwitnessed", "page" if closed else "ticket", channel, error.detail)
                )
        return tuple(waiting), alerts

    def _settle(self, state: dict[str, Any], alerts: Sequence[Alert], now: int) -> None:
        """Bring the alerts that are known up to date: new ones fire, those whose cause has gone are resolved."""
        known, fires = state["alerts"], {alert.fingerprint: alert for alert in alerts}
        for name, each in list(known.items()):
            if each.get("until_ns") is None and name not in fires:
                each["until_ns"], each["sent_to"] = now, []
            elif each.get("until_ns") is not None and (name in fires or not self._left(each)):
                del known[name]
        for name, alert in fires.items():
            if name not in known:
                known[name] = {
                    "fingerprint": name,
                    "name": alert.name,
                    "severity": alert.severity,
                    "labels": [list(each) for each in alert.labels],
                    "since_ns": now,
                    "sent_to": [],
                }
            known[name]["summary"] = alert.summary

    def _targets(self) -> list[str]:
        config = self._config
        found = [f"channel {config.alert_channel}"] if config.alert_channel is not None else []
        return [*found, *(f"webhook {url}" for url in config.webhooks)]

    def _left(self, alert: dict[str, Any]) -> list[str]:
        return [each for each in self._targets() if each not in alert["sent_to"]]

    def _tell(self, state: dict[str, Any], signals: Sequence[Signal], now: int) -> None:
        everything = list(state["alerts"].values())
        if self._config.alertmanager is not None and everything:
            # All of them, each round: Alertmanager drops an alert that is not sent again.
            url = self._config.alertmanager.rstrip("/") + "/api/v2/alerts"
            self._try(url, lambda: self._send(url, [for_alertmanager(each) for each in everything]))
        for alert in everything:
            for target in self._left(alert):
                kind, _, name = target.partition(" ")
                if kind == "channel":
                    raw = alert_envelope(alert, self._key(NODE_KEY), now, self._version(name, now))
                    done = self._try(target, lambda name=name, raw=raw: self._append(name, raw))  # type: ignore[misc]
                else:
                    document = {**for_alertmanager(alert), "fingerprint": alert["fingerprint"]}
                    done = self._try(target, lambda url=name, it=document: self._send(url, it))  # type: ignore[misc]
                if done:
                    alert["sent_to"].append(target)
                    self._save(state)
        self._observe(state, signals, now)

    def _observe(self, state: dict[str, Any], signals: Sequence[Signal], now: int) -> None:
        channel = self._config.observation_channel
        mark = [[*each.labels, each.attestation_stale, each.attestation_chain_valid, each.evidence_failed,
                 each.evidence_unknown, each.policy_hash_mismatch] for each in signals]  # fmt: skip
        last = state.get("observed", {"mark": None, "at_ns": 0})
        if channel is None or (mark == last["mark"] and now - last["at_ns"] < OBSERVE_NS):
            return
        raw = observation_envelope(signals, self._key(NODE_KEY), now, self._version(channel, now))
        if self._try(f"channel {channel}", lambda: self._append(channel, raw)):
            state["observed"] = {"mark": mark, "at_ns": now}

    def _retain(self, state: dict[str, Any], now: int) -> None:
        """Once a day: archive what is older than the retention, verified as it is written, then pack it."""
        config = self._config
        if config.keep_days is None or now - state.get("retained_ns", 0) < DAY_NS:
            return
        for channel in channels(self._home):
            if config.archive is not None:
                to = Path(config.archive)
                done = self._try(
                    f"archive {channel}",
                    lambda channel=channel, to=to: archive_channel(  # type: ignore[misc]
                        self._home, channel, self._keys(channel)[0], to, keep_days=config.keep_days
                    ),
                )
                if not done:
                    continue
                self._acts.append(f"archived {channel}")
            if self._try(
                f"pack {channel}",
                lambda channel=channel: pack_channel(self._home, channel, keep_days=config.keep_days),  # type: ignore[misc]
            ):
                self._acts.append(f"packed {channel}")
        state["retained_ns"] = now
        state["acts"] = [*state.get("acts", []), *([now, act] for act in self._acts)][-100:]

    def _append(self, channel: str, raw: bytes) -> None:
        try:
            read_settings(self._home, channel)
        except NotFound:
            create_channel(self._home, channel, NODE_KEY, self._key(NODE_KEY).public)
        with open_sealing(self._home, channel, lambda: self._keys(channel), wait_s=WRITER_WAIT_S) as opened:
            try:
                opened.log.submit(raw)
            except Replayed:
                return  # it was sealed before a crash

    def _version(self, channel: str, now: int) -> str:
        try:
            policy = read_settings(self._home, channel).policy
        except NotFound:
            policy = None
        return version_to_write(self._home, policy, now)

    def _try(self, what: str, act: Callable[[], Any]) -> bool:
        try:
            act()
        except (RopewalkError, OSError) as error:
            self._failures.append(f"{what}: {error}")
            _journal.warning("%s: %s", what, error)
            return False
        return True


def read_watch(raw: bytes) -> WatchConfig:
    """Read the file of `watch --config`: the members themselves, or a `watch` object among those of the server."""
    document: Any = jcs.parse(raw)
    if not isinstance(document, dict) or document.get("version") != 1:
        raise Invalid('a watch configuration must be an object with "version": 1')
    inner = document.get("watch")
    return parse_watch(inner if isinstance(inner, dict) else document)
