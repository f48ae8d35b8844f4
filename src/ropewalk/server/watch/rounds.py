"""One round of a watch: look at what is new, raise and resolve alerts, send them, and do what is due.

One round runs at a time in a repository, also across processes. An alert is written down before it is sent, and sent
until it is taken: a crash between the two sends it again, and channels take it once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ropewalk.disk.state_folder import StateFolder
from ropewalk.errors import Invalid, NotFound, RopewalkError
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.archive.write import verified_blocks
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.channel.channel import Channel, open_channel
from ropewalk.ledger.channel.settings import FOLDER, channels
from ropewalk.ledger.channel.witnessed import read_witness_policy, read_witnessed
from ropewalk.ledger.envelope.envelope import parse_stored
from ropewalk.ledger.evidence.recheck import EvidenceTally
from ropewalk.ledger.evidence.settings import channel_trust
from ropewalk.ledger.keys.rotate import key_notices
from ropewalk.ledger.transparency.witnessing import WitnessClient
from ropewalk.ledger.versions.lifecycle import notices
from ropewalk.server.watch.alerts import (
    Alert,
    Severity,
    alert_envelope,
    alerts_of,
    channel_alert,
    for_alertmanager,
    observation_envelope,
    post,
)
from ropewalk.server.watch.channel_writer import ChannelWriter
from ropewalk.server.watch.config import WatchConfig
from ropewalk.server.watch.schedules import read_jobs
from ropewalk.server.watch.signals import WINDOW_S, ChannelSignals, Signal

STATE = "state.json"
LOCK_WAIT_S = 30.0
OBSERVE_NS = 3_600 * 10**9  # unchanged signals are recorded again after an hour
COPIES_WAITING_MAX = 10_000  # Alerts that wait to be copied to other channels
_journal = logging.getLogger("ropewalk.watch")
_journal.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Round:
    """What a round found: signals, alerts that fire, and what could not be done."""

    signals: tuple[Signal, ...]
    firing: tuple[dict[str, Any], ...]
    failures: tuple[str, ...]
    unwitnessed: tuple[tuple[str, int], ...] = ()
    witness_failures: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the round as `watch --once` prints it."""
        return {
            "signals": [signal.to_json() for signal in self.signals],
            "alerts": [for_alertmanager(each) for each in self.firing],
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
        self._writer = ChannelWriter(home, channel_keys, signing_key)
        self._now_ns = now_ns
        self._send = send
        self._folder = StateFolder(home / "watch")
        self._jobs = StateFolder(home / "schedules")
        self._failures: list[str] = []
        self._saved = b""  # what this object wrote last, within one round

    def round(self) -> Round:
        """Do one round; rounds of other processes are waited for."""
        self._folder.make()
        with self._folder.locked(LOCK_WAIT_S):
            self._failures = []
            state = self.state()
            self._saved = json.dumps(state).encode()
            now = self._now_ns()
            signals, alerts = self._look(state, now)
            waiting, asked = self._witness()
            self._settle(state, alerts + asked, now)
            self._save(state)  # before anything is sent
            self._tell(state, signals, now)
            self._copy_alerts(state, now)
            state["last_ns"], state["failures"] = now, self._failures
            self._save(state)
            firing = tuple(each for each in state["alerts"].values() if each.get("until_ns") is None)
            return Round(tuple(signals), firing, tuple(self._failures), waiting, len(asked))

    def state(self) -> dict[str, Any]:
        """Return what is known from earlier rounds."""
        return read_state(self._folder)

    def _save(self, state: dict[str, Any]) -> None:
        raw = json.dumps(state).encode()
        if raw != self._saved:  # a round with nothing new waits for the disk once
            self._folder.replace(STATE, raw)
            self._saved = raw

    def _look(self, state: dict[str, Any], now: int) -> tuple[list[Signal], list[Alert]]:
        signals: list[Signal] = []
        alerts: list[Alert] = []
        for channel in channels(self._home):
            try:
                known, judges, due = self._follow(state, channel, now)
                alerts += [channel_alert("LifetimeEnds", "ticket", channel, text) for text in due]
                signals += known.measure(channel, judges, now, self._config.freshness_s)
            except RopewalkError as error:
                alerts.append(channel_alert("ChannelUnreadable", "page", channel, error.detail))
        for notice in notices(self._home, now):
            text = f"version {notice['version']} ends on {notice['sunset']}"
            # With the days as a label there is a new alert at 30, 14 and 7.
            labels = (("days", str(notice["days"])), ("version", str(notice["version"])))
            alerts.append(Alert("VersionEnds", "ticket", labels, text))
        for name, job in read_jobs(self._jobs).items():
            if job.get("ok") is False:
                severity: Severity = "page" if name == "drill" else "ticket"
                alerts.append(Alert("ScheduleFailed", severity, (("job", name),), f"{name}: {job['detail']}"))
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
                    left = reading.head().height - policy.covered(read_witnessed(reading.folder))
                    waiting.append((channel, left))
                    if left:
                        WitnessClient(reading, self._writer.keys(channel)[0]).collect(
                            all_of_them=True
                        ).require()
                        waiting[-1] = (channel, 0)
            except RopewalkError as error:
                alerts.append(
                    channel_alert("Unwitnessed", "page" if closed else "ticket", channel, error.detail)
                )
        return tuple(waiting), alerts

    def _follow(
        self, state: dict[str, Any], channel: str, now: int
    ) -> tuple[ChannelSignals, EvidenceTally, list[str]]:
        """Look at the new blocks of a channel: seals, links, evidence, and Alerts that its policy copies."""
        known = ChannelSignals(state["channels"].get(channel))
        trust = channel_trust(self._home, channel)
        judges = EvidenceTally(trust)
        with open_channel(self._home, channel) as reading:
            height = reading.head().height
            if height < known.height:
                raise Invalid(f"it has {height} blocks and had {known.height}")
            if height > known.height:
                copies: list[list[str]] = []
                known.follow(self._new_blocks(reading, known, height, copies, now), trust, judges, now)
                room = COPIES_WAITING_MAX - len(state["copies"])
                if len(copies) > room:
                    self._failures.append(
                        f"{channel}: {len(copies) - room} Alerts are not copied: too many wait"
                    )
                state["copies"] += copies[:room]
            due = key_notices(reading, now)
        state["channels"][channel] = known.to_json()
        return known, judges, due

    def _new_blocks(
        self, reading: Channel, known: ChannelSignals, height: int, copies: list[list[str]], now: int
    ) -> Iterator[Block]:
        """Return the new blocks, each verified; collect the Alerts that the policy copies to other channels."""
        policy, name = reading.policy, reading.settings.channel
        before = bytes.fromhex(known.head) if known.head else None
        for lines, _ in verified_blocks(reading, known.height, height - known.height, before):
            block = Block.from_lines(lines)
            recent = block.header.timestamp_ns > now - int(WINDOW_S * 1e9)
            if policy is not None and policy.fans_out and recent:
                for envelope in map(parse_stored, block.envelopes):
                    targets = policy.alert_channels(envelope)
                    copies += [[name, envelope.id.hex(), target] for target in targets if target != name]
            yield block

    def _copy_alerts(self, state: dict[str, Any], now: int) -> None:
        """Append Alerts, byte for byte, to the channels that the policy of their channel names."""
        own = self._config.alert_channel
        if own in state["channels"] or own in channels(self._home):
            self._try(f"channel {own}", lambda: self._follow(state, str(own), now))
            self._save(state)  # what was raised in this round is copied in this round
        for copy in list(state["copies"]):
            source, name, target = copy
            if self._try(f"alert {name[:12]} to {target}", partial(self._copy, source, name, target)):
                state["copies"].remove(copy)
                self._save(state)

    def _copy(self, source: str, name: str, target: str) -> None:
        with open_channel(self._home, source) as reading:
            raw = reading.envelope(bytes.fromhex(name)).raw
        self._writer.append(target, raw)

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
                    raw = alert_envelope(alert, self._writer.key, now, self._writer.version(name, now))
                    done = self._try(target, lambda name=name, raw=raw: self._writer.append(name, raw))  # type: ignore[misc]
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
        raw = observation_envelope(signals, self._writer.key, now, self._writer.version(channel, now))
        if self._try(f"channel {channel}", lambda: self._writer.append(channel, raw)):
            state["observed"] = {"mark": mark, "at_ns": now}

    def _try(self, what: str, act: Callable[[], Any]) -> bool:
        try:
            act()
        except (RopewalkError, OSError) as error:
            self._failures.append(f"{what}: {error}")
            _journal.warning("%s: %s", what, error)
            return False
        return True


def read_state(folder: StateFolder) -> dict[str, Any]:
    """Return what the rounds of a repository have found; nothing without a readable file."""
    empty: dict[str, Any] = {"version": 1, "channels": {}, "alerts": {}, "copies": []}
    try:
        found: Any = json.loads(folder.read(STATE))
    except (NotFound, ValueError, RecursionError):  # it is made again from the channels
        return empty
    return empty | found if isinstance(found, dict) and found.get("version") == 1 else empty
