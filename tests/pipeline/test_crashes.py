"""A writer that dies between any two steps: the next run completes the tables, with no row lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ropewalk.pipeline.ingest import Ingest
from ropewalk.pipeline.verify import verify_tables
from ropewalk.pipeline.warehouse import Manifest, Warehouse
from tests.pipeline.test_ingest import keys_in_log, keys_of
from tests.pipeline.world import World

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
STEPS = 10  # eight folders put in their places, then the manifest, then the cursors


class Crash(BaseException):
    """The process is gone: nobody catches this."""


class Mortal(Warehouse):
    """A warehouse whose writer dies before its n-th step."""

    def __init__(self, path: Path, lives: int) -> None:
        super().__init__(path)
        self.lives = lives

    def _step(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise Crash

    def put_in_place(self, name: str, target: Path) -> None:
        self._step()
        super().put_in_place(name, target)

    def commit(self, manifest: Manifest) -> None:
        self._step()
        super().commit(manifest)


def test_dying_between_any_two_steps_loses_and_doubles_nothing(spark: Any, world: World, tmp_path: Path):
    warehouse = tmp_path / "tables"
    for lives in range(STEPS):
        world.git("prod", 1)
        world.gossip("com.example.chat", 1)
        world.ledger("ea.core", 2)
        job = Ingest(spark, world.path, warehouse, now_ms=lambda: world.clock_ms, group="analytics")
        job.warehouse = Mortal(warehouse, lives)
        if lives == STEPS - 1:
            job.move_cursors = _die  # type: ignore[method-assign,assignment]
        with pytest.raises(Crash):
            job.once()
    done = Ingest(spark, world.path, warehouse, now_ms=lambda: world.clock_ms, group="analytics").once()
    assert done.batches <= 1
    assert keys_of(warehouse, "events") == keys_in_log(world)
    assert verify_tables(spark, Warehouse(warehouse)).ok


def _die(_at: object) -> None:
    raise Crash
