from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.disk.lmdb_tables import LmdbTables
from ropewalk.disk.memory_tables import MemoryTables
from ropewalk.gossip.core.ids import Key
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import sign
from ropewalk.gossip.core.table import TABLES, TableStore, Transaction
from ropewalk.gossip.core.writing import Batch
from ropewalk.kernel.keys import SigningKey

VECTORS = Path(__file__).parents[3] / "vectors" / "gossiplog"


@pytest.fixture(scope="session")
def vector() -> Callable[[str], Any]:
    return lambda name: json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(params=["memory", "lmdb"])
def make_table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], TableStore]]:
    made: list[TableStore] = []

    def make() -> TableStore:
        path = tmp_path / f"db{len(made)}"
        table: TableStore = MemoryTables(TABLES) if request.param == "memory" else LmdbTables(path, TABLES)
        made.append(table)
        return table

    yield make
    for table in made:
        table.close()


def key(n: int) -> SigningKey:
    return SigningKey.generate("ed25519", bytes([n] * 32))


def memory_log(topic: str = "com.example", **options: Any) -> GossipLog:
    options.setdefault("signer", key(1))
    return GossipLog(MemoryTables(TABLES), topic, **options)


def ground(log: GossipLog, clock: int) -> None:
    """Put a message with a high clock into a log, as if all before it had been forgotten."""
    below = Key((log.profile.code.encode(clock - 1) + bytes(20))[:20])
    signed = sign(log.profile, key(9), log.topic, (below,), "ground")

    def body(change: Transaction) -> None:
        batch = Batch(change, log)
        batch.store(signed)
        batch.finish()

    log.table.transact(body)


def raws(log: GossipLog) -> list[bytes]:
    return [signed.raw for signed in log.iterate()]
