"""Workloads of gossip and of the warehouse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from ropewalk.errors import Damaged, Unverified
from ropewalk.gossip.core.verify import verify_log
from ropewalk.gossip.peer.topics import open_log as open_topic
from ropewalk.gossip.sync.session import pull_from
from ropewalk.pipeline.jobs.compact import merge_files
from ropewalk.pipeline.source.offsets import Offset
from ropewalk.pipeline.tables.verify import check_files
from ropewalk.pipeline.tables.warehouse import Manifest, Warehouse
from tests.fault.test_gossip_kills import KEY, TOPIC
from tests.sim.power.base import LAST, Acknowledge, Workload, held


class GossipAppends(Workload):
    """Messages one by one and in a batch; the store is LMDB."""

    engine = "gossip"
    own_process = True
    rot = frozenset(("bit", "zeros"))  # LMDB has no checksums: an old page that is whole is an old store
    without = frozenset(("folder",))  # a store that is there syncs no folder

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


class GossipNew(GossipAppends):
    """A topic is made in a folder below one that is missing."""

    without = frozenset()

    def prepare(self, root: Path) -> None:
        pass

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        for number in range(3):
            acknowledge(self.append(root, number))

    def append(self, root: Path, number: int) -> str:
        return super().append(root / "topics", number)

    def read(self, root: Path) -> list[str]:
        return super().read(root / "topics")

    def verify(self, root: Path, deep: bool) -> str:
        return super().verify(root / "topics", deep)


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
    tables: ClassVar[tuple[str, ...]] = ("events", "deployments")

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
            for table in self.tables:
                store.staging(table).mkdir(parents=True)
                rows = pa.table({"topic": ["a"] * 9, "n": [number] * 9})
                pq.write_table(rows, store.staging(table) / "part-0.parquet")
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


class WarehouseMerge(WarehouseCommits):
    """The small files of a table are merged into one, which replaces them; batches come before and after."""

    tables = ("events__small",)

    def prepare(self, root: Path) -> None:
        super().prepare(root)
        for number in (1, 2):
            self.append(root, number)

    def work(self, root: Path, acknowledge: Acknowledge) -> None:
        acknowledge(self.append(root, 3))
        merge_files(Warehouse(root / "data" / "tables"), 0)
        acknowledge(self.append(root, 4))

    def append(self, root: Path, number: int) -> str:
        super().append(root, number)
        return f"rows {number}"

    def read(self, root: Path) -> list[str]:
        """Return what the rows of the table say, in order; nine of them are a batch."""
        if wrong := self.verify(root, deep=True):
            raise Damaged(wrong)
        store = Warehouse(root / "data" / "tables")
        files = store.current_files(store.manifests()).get(self.tables[0], [])
        found = [n for path in store.paths(files) for n in pq.ParquetFile(path).read()["n"].to_pylist()]
        return [f"rows {n}" for n in found[::9]] if len(found) % 9 == 0 else ["a part of a batch"]

    def check(self, root: Path, acknowledged: list[str]) -> Iterator[str]:
        yield from super().check(root, acknowledged)
        merge_files(Warehouse(root / "data" / "tables"), 0)
        found = self.read(root)
        yield from held(["rows 1", "rows 2", *acknowledged, f"rows {LAST}"], found)
