"""A small true repository for pipeline tests: git topics, a ledger channel, a gossip log, all from fixed seeds."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ropewalk.disk.repository_paths import RepositoryPaths, make_repository
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES, SHIPLOG, Layout
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gossip.peer.topics import open_topic
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import open_log
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.ports import IngestLimits

ADA = SigningKey.generate("ed25519", b"ada" + bytes(29))
BOB = SigningKey.generate("ed25519", b"bob" + bytes(29))
NODE = SigningKey.generate("ed25519", b"node" + bytes(28))
NOON_MS = 1_730_462_400_000
HOUR_MS = 3_600_000
_numbers = itertools.count()


@dataclass(slots=True)
class World:
    """One repository; every append goes on where the last one ended."""

    path: Path
    place: RepositoryPaths
    clock_ms: int = NOON_MS

    @classmethod
    def make(cls, path: Path) -> World:
        place, _ = make_repository(path)
        return cls(path, place)

    def entropy(self, size: int) -> bytes:
        return hashlib.blake2b(str(next(_numbers)).encode(), digest_size=size).digest()

    def now_ms(self) -> int:
        self.clock_ms += 1
        return self.clock_ms

    def git(
        self,
        topic: str,
        count: int,
        *,
        layout: Layout = SHIPLOG,
        service: str = "web",
        status: str = "success",
    ) -> list[str]:
        """Append events; returns their commits."""
        with open_repository(self.path, now_ms=self.now_ms, entropy=self.entropy) as log:
            drafts = []
            for number in range(count):
                trailer: dict[str, Any] | None = None
                if layout is SHIPLOG:
                    trailer = {
                        "status": status,
                        "what": {"service": service, "artifact": f"{service}:{number}"},
                        "when": {
                            "start_ts": _text(self.clock_ms),
                            "end_ts": _text(self.clock_ms + 60_000),
                            "dur_s": 60,
                        },
                    }
                drafts.append(
                    Draft({"type": "deploy.finished", "payload": {"n": number, "ok": True}}, trailer)
                )
            outcomes = log.append_all(topic, drafts, layout=layout)
        for outcome in outcomes:
            assert not isinstance(outcome, Exception), outcome
        self.clock_ms += HOUR_MS
        return [outcome.commit for outcome in outcomes]  # type: ignore[union-attr]

    def messages(self, topic: str, count: int) -> list[str]:
        return self.git(topic, count, layout=MESSAGES)

    def ledger(self, channel: str, count: int, *, per_block: int = 4, **options: Any) -> list[Envelope]:
        """Append envelopes in blocks of `per_block`."""
        home = self.place.home
        if not (home / "ledger" / channel / "channel.json").exists():
            create_channel(home, channel, "node", NODE.public)
        made = [
            build(
                ADA,
                domain="ea.core",
                event_class="Observation",
                event_type="test.seen" if number % 2 else "test.heard",
                payload={"n": number, "channel": channel, "at": next(_numbers)},
                timestamp=_text(self.clock_ms + number),
            )
            for number in range(count)
        ]
        limits = IngestLimits(block_envelopes=per_block)
        with open_log(
            home, channel, NODE, now_ns=lambda: (self.clock_ms + HOUR_MS) * 10**6, limits=limits, **options
        ) as opened:
            for start in range(0, count, per_block):
                opened.log.submit_many([each.raw for each in made[start : start + per_block]])
        self.clock_ms += HOUR_MS
        return made

    def gossip(self, topic: str, count: int, *, key: SigningKey = ADA) -> list[str]:
        """Append messages; returns their ids."""
        with open_topic(self.place.home, topic, create=True, signer=key) as log:
            return [each.id for each in log.append_many([{"n": number} for number in range(count)])]

    @property
    def segment(self) -> Path:
        """The only segment of the only channel, or of `ea.core` where there are more."""
        found = sorted(self.place.home.glob("ledger/*/segments/*.seg"))
        (only,) = found if len(found) == 1 else (each for each in found if each.parts[-3] == "ea.core")
        return only


def _text(time_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def usual(path: Path) -> World:
    """Two git topics, one message topic, one channel, one gossip log."""
    world = World.make(path)
    world.git("prod", 12)
    world.git("staging", 5, service="api", status="failed")
    world.messages("jobs/pending", 3)
    world.ledger("ea.core", 20)
    world.gossip("com.example.chat", 7)
    return world


def mostly_slow(*names: str, fast: int) -> list[Any]:
    """Return the names as parameters: a few in the fast lane, the others in the slow one."""
    return [*names[:fast], *(pytest.param(name, marks=pytest.mark.slow) for name in names[fast:])]


__all__ = ["ADA", "BOB", "NODE", "NOON_MS", "World", "mostly_slow", "usual"]
