"""Workloads of gossip and of the warehouse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ropewalk.errors import Unverified
from ropewalk.gossip.core.verify import verify_log
from ropewalk.gossip.peer.topics import open_log as open_topic
from ropewalk.gossip.sync.session import pull_from
from ropewalk.pipeline.source.offsets import Offset
from ropewalk.pipeline.tables.verify import check_files
from ropewalk.pipeline.tables.warehouse import Manifest, Warehouse
from tests.fault.test_gossip_kills import KEY, TOPIC
from tests.sim.power.base import Acknowledge, Workload, held


class GossipAppends(Workload):
    """Messages one by one and in a batch; the store is LMDB."""

    engine = "gossip"
    own_process = True
    rot = frozenset(("bit", "zeros"))  # LMDB has no checksums: an old page that is whole is an old store

    def prepare(self, root: Path) -> None:
        with open_topic(TOPIC, root / "db", signer=KEY) as log:
            log.append("first")

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        with open_topic(TOPIC, root / "db", signer=KEY) as log:
            for number in range(3):
                acknowledge(log.append(number).id)
            for stored in log.append_many(range(10, 40)):
                acknowledge(stored.id)

    def append(self, root: Path, number: int) -> str:
        with open_topic(TOPIC, root / "db", signer=KEY) as log:
            return log.append(number).id

    def read(self, root: Path) -> list[str]:
        with open_topic(TOPIC, root / "db", signer=KEY) as log:
            return [signed.id for signed in log.iterate()]

    def verify(self, root: Path, deep: bool) -> str:
        with open_topic(TOPIC, root / "db", signer=KEY) as log:
            report = verify_log(log)
            return "" if report.ok else str(report.to_json())


class GossipSync(GossipAppends):
    """A peer pulls from another; after a cut it pulls the rest."""

    def prepare(self, root: Path) -> None:
        super().prepare(root)
        with open_topic(TOPIC, root / "source", signer=KEY) as source:
            source.append_many(range(100, 140))

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        self._pull(root)
        acknowledge(self.append(root, 10))

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        self._pull(root)
        yield from super().check(root, acknowledged)
        with open_topic(TOPIC, root / "source", signer=KEY) as source:
            missing = {each.id for each in source.iterate()} - set(self.read(root))
        if missing:
            yield f"{len(missing)} messages did not come"

    def _pull(self, root: Path) -> None:
        with open_topic(TOPIC, root / "db", signer=KEY) as log, open_topic(TOPIC, root / "source") as source:
            pull_from(log, source)


class WarehouseCommits(Workload):
    """Batches of an ingest become part of a warehouse that is made on the way."""

    engine = "pipeline"

    def prepare(self, root: Path) -> None:
        (root / "data").mkdir()

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        for rows in (2, 3):
            acknowledge(self.append(root, rows))

    def append(self, root: Path, number: int) -> str:
        store = Warehouse(root / "data" / "tables")
        with store.writing():
            known = store.manifests()
            files = {}
            for table in ("events", "deployments"):
                store.staging(table).mkdir(parents=True)
                pq.write_table(pa.table({"n": [number] * 9}), store.staging(table) / "part-0.parquet")
                files[table] = store.put_in_place(table, len(known) + 1)
            batch = len(known) + 1, known[-1].digest if known else None
            store.commit(Manifest(*batch, "s", "strict", 0, Offset(), Offset(), (), files, (), ()), known)
        return f"batch {batch[0]}"

    def read(self, root: Path) -> list[str]:
        return [f"batch {each.number}" for each in Warehouse(root / "data" / "tables").manifests()]

    def verify(self, root: Path, deep: bool) -> str:
        store = Warehouse(root / "data" / "tables")
        try:
            steps = check_files(store, store.manifests())
        except Unverified as error:
            return error.detail
        return "; ".join(step.detail for step in steps if step.status == "failed")

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        before = self.read(root) if (root / "data" / "tables").exists() else []
        yield from held(acknowledged, before)
        yield from super().check(root, acknowledged)
