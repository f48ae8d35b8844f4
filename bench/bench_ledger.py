"""The ledger beside its ceilings: submitting, verifying, proving, opening, and appending at a great height."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import tempfile
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from blake3 import blake3
from nacl.bindings import crypto_sign_open

from bench.harness import Contestant, Result, compare, fixed
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.proofs import LEDGER, SHA256
from ropewalk.ledger.block.block import GENESIS, seal
from ropewalk.ledger.block.index_keys import BlockIndexKeys, derive
from ropewalk.ledger.channel.channel import open_channel, open_log, verify_blocks
from ropewalk.ledger.channel.index.index import LedgerIndex
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.channel.segments.writer import SegmentWriter
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.async_log import ServedLog
from ropewalk.ledger.ingest.log import ChannelWriter
from ropewalk.ledger.proof.proof import parse_proof, verify_proof
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.proof.verify import check_channel

__all__ = ["run"]

ADA = SigningKey.generate("ed25519", b"ada" + bytes(29))
NODE = SigningKey.generate("ed25519", b"node" + bytes(28))
CHANNEL = "bench"
NOON = "2024-11-01T12:00:00Z"
PAYLOAD_TEXT = "x" * 300  # makes an envelope of one kibibyte
SUBMITTERS = 64


def envelope(number: int, text: str = PAYLOAD_TEXT) -> Envelope:
    """An Observation of one kibibyte."""
    return build(
        ADA,
        domain="ea.core",
        event_class="Observation",
        event_type="bench.seen",
        payload={"n": number, "text": text},
        timestamp=NOON,
    )


@contextmanager
def new_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-ledger-") as folder:
        home = Path(folder)
        create_channel(home, CHANNEL, "node", NODE.public)
        yield home


def submit_all(raws: list[bytes]) -> int:
    """64 threads, each submitting one envelope after another into a new channel."""
    with new_home() as home, open_log(home, CHANNEL, NODE) as ledger:

        def work(start: int) -> None:
            for raw in raws[start::SUBMITTERS]:
                ledger.log.submit(raw)

        threads = [threading.Thread(target=work, args=(start,)) for start in range(SUBMITTERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ledger.log.head.envelopes == len(raws)
    return len(raws)


def serve_all(raws: list[bytes]) -> int:
    """64 coroutines, each submitting one envelope after another into a new channel."""

    async def main(log: ChannelWriter) -> None:
        async with ServedLog(log) as served:

            async def work(start: int) -> None:
                for raw in raws[start::SUBMITTERS]:
                    await served.submit(raw)

            await asyncio.gather(*(work(start) for start in range(SUBMITTERS)))

    with new_home() as home, open_log(home, CHANNEL, NODE) as ledger:
        asyncio.run(main(ledger.log))
        assert ledger.log.head.envelopes == len(raws)
    return len(raws)


def bare_ingest(raws: list[bytes]) -> int:
    """Strict parse, both hashes, one signature: what no ledger in one process can do without."""
    key = ADA.public.raw
    for raw in raws:
        value: Any = jcs.parse_canonical(raw)
        blake3(b"ea:envelope:v1" + raw).digest()
        blake3(orjson.dumps(value["payload"], option=orjson.OPT_SORT_KEYS)).digest()
        names = value["signature"]["signed_fields"]
        message = b"ea:signature:v1" + orjson.dumps([[name, value.get(name)] for name in names])
        crypto_sign_open(b64decode(value["signature"]["sig"]) + message, key)
    return len(raws)


def sqlite_inserts(raws: list[bytes]) -> int:
    """One durable row an event, as somebody without a ledger would do it."""
    with tempfile.TemporaryDirectory(prefix="ropewalk-bench-ledger-") as folder:
        connection = sqlite3.connect(Path(folder) / "events.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, body BLOB)")
        for raw in raws:
            connection.execute("INSERT INTO events (body) VALUES (?)", (raw,))
        connection.close()
    return len(raws)


def _submitting(quick: bool) -> list[Result]:
    raws = [envelope(i).raw for i in range(1280 if quick else 6400)]
    few = raws[: 100 if quick else 500]
    ways = (  # a server serves coroutines; threads are for who has them already
        Contestant("64 coroutines, all rules, fsync", lambda: serve_all(raws)),
        Contestant("64 threads, all rules, fsync", lambda: submit_all(raws)),
    )
    peers = (
        (Contestant("bare strict parse + hash + verify", lambda: bare_ingest(raws)), 0.7),
        (Contestant("SQLite WAL FULL, row by row", lambda: sqlite_inserts(few)), 3.0),
    )
    # Many short rounds: a neighbour's noise lasts longer than one of them.
    rows = [
        compare(
            "submit 1 KiB envelopes",
            way,
            [peer],
            target=target,
            rounds=3 if quick else 11,
            unit="envelopes",
        )
        for peer, target in peers
        for way in ways
    ]
    return [row for some in rows for row in some]


def _verifying(quick: bool) -> list[Result]:
    count = 5_000 if quick else 100_000
    with new_home() as home:
        envelopes = [envelope(i) for i in range(count)]
        with open_log(home, CHANNEL, NODE) as ledger:
            ledger.log.submit_many(one.raw for one in envelopes)
        pairs = [(one.signature_bytes + one.preimage) for one in envelopes]
        del envelopes

        def ours() -> int:
            assert verify_blocks(home, CHANNEL, deep=True).ok
            return count

        def bare() -> int:
            key = ADA.public.raw
            for signed in pairs:
                crypto_sign_open(signed, key)
            return count

        def one_hand() -> int:
            with open_channel(home, CHANNEL) as channel:
                span = check_channel(channel.lines(), trust=channel.settings.trust())
            assert span.fault is None and span.envelopes == count
            return count

        job = f"verify {count:,} envelopes in blocks"
        rows = [
            compare(
                job,
                Contestant(f"all steps, all rules, {name}", act),
                [Contestant("bare Ed25519 verify", bare)],
                target=0.75,
                rounds=2 if quick else 3,
                unit="envelopes",
            )
            for name, act in (("as the command does it", ours), ("one thread", one_hand))
        ]
        return [row for some in rows for row in some]


def fill(home: Path, count: int, per_block: int, true_ones: dict[int, Envelope]) -> None:
    """A channel of `count` envelopes, made fast: only those in `true_ones` carry a signature that holds."""
    pattern = envelope(0, text="y" * 60).raw
    head, tail = pattern.split(b'"n":0,')
    segments = Segments(home / "ledger" / CHANNEL)
    index = LedgerIndex(segments, derive)
    below, number = GENESIS, 0
    with SegmentWriter(segments.folder) as writer:
        while number < count:
            raws = [
                true_ones[i].raw if i in true_ones else head + b'"n":%d,' % i + tail
                for i in range(number, min(number + per_block, count))
            ]
            block = seal(
                NODE,
                channel=CHANNEL,
                height=writer.height,
                prev_block_hash=below,
                envelopes=raws,
                timestamp_ns=writer.height,
            )
            below, number = block.hash, number + len(raws)
            lines = block.lines()
            marks = _cheap_marks(block.header, raws)
            index.add(writer.append(block.height, lines), [len(line) for line in lines], marks)
        writer.sync()
    index.close()


def _cheap_marks(header: Any, raws: list[bytes]) -> BlockIndexKeys:
    ids = tuple(LEDGER.leaf(raw) for raw in raws)
    return BlockIndexKeys(
        header.prev_block_hash,
        header.hash,
        SHA256.leaf(header.encode()),
        header.merkle_root,
        header.timestamp_ns,
        ids,
        (None,) * len(ids),
        ids,  # stand-ins of the same size: nobody asks for the intents of these
    )


def _proving(quick: bool) -> list[Result]:
    count = 50_000 if quick else 1_000_000
    samples = {number: envelope(number) for number in range(7, count, count // 500)}
    trust = Trust((NODE.public,), ())
    with new_home() as home:
        fill(home, count, 1000, samples)
        opening = _median(lambda: open_log(home, CHANNEL, NODE).close(), 5)
        with open_channel(home, CHANNEL) as channel:
            assert channel.head().envelopes == count
            ids = [one.id for one in samples.values()]
            proofs = [channel.prove(name).to_bytes() for name in ids]
            proving = _each(lambda name: channel.prove(name).to_bytes(), ids)
            checking = _each(lambda raw: _must(verify_proof(parse_proof(raw), trust).ok), proofs)
    here = f"one envelope in {count:,}"
    return [
        fixed(f"prove {here}", "median of 500", "1 ms", 1 / proving, 1000, 1.0, "proofs"),
        fixed(f"verify the proof of {here}", "median of 500", "1 ms", 1 / checking, 1000, 1.0, "proofs"),
        fixed(
            f"open a ledger of {count:,} envelopes", "median of 5", "0.5 s", 1 / opening, 2, 1.0, "openings"
        ),
    ]


def _growing(quick: bool) -> list[Result]:
    """The same appends into an empty channel and on top of many blocks."""
    height = 10_000 if quick else 200_000
    raws = [envelope(i).raw for i in range(400)]

    def appends(home: Path) -> float:
        with open_log(home, CHANNEL, NODE) as ledger:
            return _each(lambda raw: _must(ledger.log.submit(raw).height >= 0), raws)

    with new_home() as low, new_home() as high:
        fill(high, height, 1, {})
        at_bottom, at_top = appends(low), appends(high)
    job = f"append block {height:,} beside block 0"
    return [fixed(job, "median of 400", "into an empty channel", 1 / at_top, 1 / at_bottom, 0.7, "blocks")]


def _must(ok: bool) -> None:
    assert ok


def _median(act: Callable[[], Any], times: int) -> float:
    return _each(lambda _: act(), list(range(times)))


def _each(act: Callable[[Any], Any], items: list[Any]) -> float:
    """Median seconds of one call."""
    seconds = []
    for item in items:
        started = time.perf_counter()
        act(item)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def run(quick: bool) -> list[Result]:
    """All rows."""
    rows = [*_submitting(quick), *_verifying(quick), *_proving(quick), *_growing(quick)]
    return [replace(row, note=row.note or "one process") for row in rows]
