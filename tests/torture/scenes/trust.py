"""What is trusted changes in mid-stream: evidence that comes late, and keys that give way."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

from ropewalk.errors import RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.envelope.model import payload_hash
from ropewalk.ledger.evidence.binding import report_data
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from tests.torture.scenes.house import House
from tests.torture.scenes.report import Scene
from tests.torture.scenes.stream import Stream, gated
from tests.torture.scenes.workload import Workload
from tests.unit.ledger.attesting import PCR0, Authority, nitro_document
from tests.waiting import until

__all__ = ["key_rotation", "late_evidence"]

MAX_AGE_S = 3_600
ATTESTED: dict[str, Any] = {
    "version": 1,
    "name": "attested",
    "rules": [
        {
            "id": "attested",
            "name": "evidence",
            "version": 1,
            "kind": "evidence",
            "decision": "deny",
            "formats": ["tee.report"],
            "when": {"types": ["image.built"]},
        },
        {
            "id": "checked",
            "name": "evidence",
            "version": 1,
            "kind": "evidence_checked",
            "decision": "deny",
            "when": {"types": ["image.built"]},
        },
    ],
}


def late_evidence(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """Who attests an image is slow: reports come that are too old or have expired. Others send on meanwhile."""
    channel, server = "attested", house.server()
    house.create(channel, ATTESTED)
    attesting = _Attesting(work)
    (house.folder / "root.pem").write_text(attesting.root.pem)
    house.ran(
        *("ledger", "evidence", "set", "--channel", channel, "--root", "root.pem"),
        *("--pcr", f"0={PCR0.hex()}", "--max-age", str(MAX_AGE_S)),
    )
    others = [work.raws(5) for _ in range(4 if quick else 100)]
    done = threading.Event()
    feed = Stream(house, server.url, channel, gated([others], [done]))
    told: dict[str, list[LedgerReceipt | RopewalkError]] = {}
    try:
        with house.connect(server.url, channel) as remote:
            for _ in range(2 if quick else 20):
                # In the order of a day on which attesting is slow, and then well again.
                for kind, made in attesting.day():
                    told.setdefault(kind, []).extend(remote.submit_many([made]))
    finally:
        done.set()
        feed.end()
    sentences = {kind: sorted({_said(each) for each in outcomes}) for kind, outcomes in told.items()}
    scene.check(
        "without evidence nothing is let in that needs it",
        all(isinstance(each, RopewalkError) for each in told["none"]),
        said=sentences["none"],
    )
    for kind, word in (("late", "old"), ("expired", "expired"), ("another image", "does not bind")):
        scene.check(
            f"evidence is refused in words that say why: {kind}",
            all(isinstance(each, RopewalkError) and each.code != "Unavailable" for each in told[kind])
            and all(word in said for said in sentences[kind]),
            said=sentences[kind],
        )
    for kind in ("nearly late", "fresh"):
        scene.check(
            f"evidence is accepted, whatever was refused before: {kind}",
            all(isinstance(each, LedgerReceipt) for each in told[kind]),
            said=sentences[kind],
        )
    scene.check("others go on meanwhile", not feed.refused and len(feed.sent) == sum(map(len, others)))
    taken = sum(isinstance(each, LedgerReceipt) for outcomes in told.values() for each in outcomes)
    scene.check(
        "what was refused stands nowhere, and the channel verifies with its evidence",
        len(house.standing(channel)) == taken + len(feed.sent)
        and house.run("ledger", "verify", "--channel", channel, "--deep").code == 0,
    )
    scene.measure("attestations", sum(map(len, told.values())))


def _said(outcome: LedgerReceipt | RopewalkError) -> str:
    return outcome.detail if isinstance(outcome, RopewalkError) else "taken"


class _Attesting:
    """Who makes reports, as a vendor's hardware would. Their dates are counted from now; the ages are drawn."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        now = datetime.now(UTC)
        span: dict[str, Any] = {"start": now - timedelta(days=2), "end": now + timedelta(days=2)}
        self.root = Authority("root", **span)
        self._leaf = Authority("enclave", self.root, ca=False, **span)

    def day(self) -> list[tuple[str, bytes]]:
        """Envelopes about one image, by what is wrong with their evidence."""
        chance = self._work.chance
        payload = {"image": chance.randbytes(16).hex()}
        name = chance.randbytes(8).hex()
        late_s, nearly_s = chance.randint(MAX_AGE_S + 60, 80_000), chance.randint(60, MAX_AGE_S - 600)
        self._work.drawn((payload, name, late_s, nearly_s))
        other = {"image": "another"}
        return [
            ("none", self._envelope(payload, name, None)),
            ("late", self._envelope(payload, name, self._report(payload, name, late_s))),
            ("expired", self._envelope(payload, name, self._report(payload, name, 0, expired=True))),
            ("another image", self._envelope(payload, name, self._report(other, name, 0))),
            ("nearly late", self._envelope(payload, name, self._report(payload, name, nearly_s))),
            ("fresh", self._envelope(payload, name, self._report(payload, name, 0))),
        ]

    def _report(self, payload: Any, name: str, age_s: int, *, expired: bool = False) -> dict[str, Any]:
        document = nitro_document(
            self._leaf,
            [self.root],
            timestamp=int((time.time() - age_s) * 1000),
            user_data=report_data(bytes.fromhex(payload_hash(payload)), name),
        )
        report = {"tee_type": "aws_nitro", "document": b64encode(document).decode()}
        return {**report, "freshness": {"expires_at": "2025-01-01T00:00:00Z"}} if expired else report

    def _envelope(self, payload: Any, name: str, report: dict[str, Any] | None) -> bytes:
        evidence = None
        if report is not None:
            hash_ = blake3(jcs.encode(report)).hex()
            evidence = {"format": "tee.report", "evidence_hash": hash_, "report": report}
        return self._work.told(
            event_class="Observation" if report is None else "Attestation",
            event_type="image.built",
            payload=payload,
            correlation_id=name,
            evidence=evidence,
        ).raw


def key_rotation(house: House, work: Workload, scene: Scene, quick: bool) -> None:
    """Two clients send without a pause and a follower pulls, while the key that seals gives way, and again."""
    channel, server = "rotated", house.server()
    trust = house.create(channel)
    turns, each = (1, 4) if quick else (6, 60)
    pools = [[[work.raws(5) for _ in range(each)] for _ in range(turns + 1)] for _ in range(2)]
    gates = [threading.Event() for _ in range(turns + 1)]
    copy = house.empty("rotated-copy.git")
    house.pull(server.url, channel, copy, trust)
    where = (
        "ledger",
        "pull",
        server.url,
        "--channel",
        channel,
        "--trust",
        str(trust),
        *house.certified(server.url),
    )
    following = house.start(*where, "--follow", "--every", "0.05", repo=copy, stdout=subprocess.DEVNULL)
    streams = [Stream(house, server.url, channel, gated(pool, gates)) for pool in pools]
    rotated, late, took = [], [], []
    try:
        for turn, gate in enumerate(gates[:-1]):
            house.ran("key", "new", f"node-{turn}")
            started = time.perf_counter()
            rotated.append(house.run("ledger", "key", "rotate", "--channel", channel, "--to", f"node-{turn}"))
            took.append(time.perf_counter() - started)
            late.append(house.send(server.url, channel, work.raws(2), "--trust", str(trust)))
            gate.set()
    finally:
        for gate in gates:
            gate.set()
        for stream in streams:
            stream.end()
    hashes = house.block_hashes(channel)
    with open_channel(house.home, channel) as reading:
        sealers = [block.record.signer for block in reading.blocks()]
    changes = [height for height, (one, two) in enumerate(itertools.pairwise(sealers)) if one != two]
    until(lambda: house.block_hashes(channel, copy) == hashes or following.poll() is not None)
    followed = following.poll() is None
    following.kill()
    stands = house.standing(channel)
    sent = [raw for stream in streams for raw in stream.sent]
    scene.check(
        "the key gives way while others send without a pause",
        all(answer.code == 0 for answer in rotated),
        said=[answer.err[-200:] for answer in rotated if answer.code],
    )
    scene.check(
        "every envelope has a receipt, stands once, and in the order in which its client sent it",
        not any(stream.refused for stream in streams)
        and sorted(raw for raw in stands if raw in set(sent)) == sorted(sent)
        and all([raw for raw in stands if raw in set(stream.sent)] == stream.sent for stream in streams),
        refused=[stream.refused[:2] for stream in streams],
    )
    scene.check(
        "every key seals in its time and none after it",
        len(set(sealers)) == turns + 1 and len(changes) == turns,
        keys=len(set(sealers)),
        changes=changes,
    )
    scene.check(
        "whoever trusts the first key alone is served by the next ones",
        all("envelope_id" in said for answers in late for said in answers),
    )
    scene.check(
        "the follower goes on over every change", followed and house.block_hashes(channel, copy) == hashes
    )
    scene.check(
        "the copy verifies with a trust file that names the first key alone",
        house.run("ledger", "verify", "--channel", channel, "--deep", "--trust", str(trust), repo=copy).code
        == 0,
    )
    scene.measure("rotations", turns)
    scene.measure("slowest_rotation_s", max(took))
    scene.measure("blocks", len(hashes))
