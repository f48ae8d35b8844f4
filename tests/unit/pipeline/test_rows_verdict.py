"""Rows and `ropewalk verify` refuse the same: a share of the table of damages, without Spark, bundles and replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pipeline.verdicts import CASES, make_base, reopened
from tests.pipeline.world import World

from ropewalk.errors import Damaged, NotFound, Unverified
from ropewalk.gossip.peer.topics import open_topic, topics
from ropewalk.pipeline import to_arrow
from ropewalk.verification import verify as verify_repository


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_base(tmp_path_factory.mktemp("base") / "log.git")


@pytest.mark.parametrize(
    "name",
    [
        "envelope schema",
        "trailer schema",
        "message without event id",
        "stray file",
        "stray file beside the envelope",
        "unnamed attachment",
        "lost attachment",
        "spaced envelope",
        "other seq",
        "vanished topic",
        "swapped arrivals",
        "no last arrival",
        "forged message",
        "forged seal",
        "no key list",
    ],
)
def test_rows_refuse_what_verify_refuses(base: World, tmp_path: Path, name: str):
    case, world = CASES[name], reopened(base, tmp_path / "log.git")
    (bad,) = case.bad
    engine, _, topic = bad.partition("/")
    assert to_arrow(world.path, engine=engine, topics=topic).num_rows
    case.act(world)
    assert not verify_repository(world.path, deep=True).ok
    with pytest.raises(Unverified):
        to_arrow(world.path, engine=engine, topics=topic)


def test_channel_without_policy_is_damaged(base: World, tmp_path: Path):
    """Rows ended in FileNotFoundError, in quarantine too (T6)."""
    world = reopened(base, tmp_path / "log.git")
    CASES["no policy"].act(world)
    with pytest.raises(Damaged, match=r"policy\.json"):
        to_arrow(world.path, topics="ruled")
    rows = to_arrow(world.path, topics="ruled", verify="quarantine").to_pylist()
    assert [(row["verdict"], "policy.json" in row["detail"]) for row in rows] == [("failed", True)]


def test_channel_without_settings_is_listed(base: World, tmp_path: Path):
    world = reopened(base, tmp_path / "log.git")
    CASES["no settings"].act(world)
    report = verify_repository(world.path)
    assert "ledger/ruled:settings" in {step.name for step in report.steps if step.status == "failed"}
    with pytest.raises(Damaged, match=r"channel\.json is missing"):
        to_arrow(world.path)


def test_reading_stray_gossip_folder_makes_nothing(base: World, tmp_path: Path):
    """A read made an LMDB store of every folder under gossip/ (T7)."""
    world = reopened(base, tmp_path / "log.git")
    stray = world.place.home / "gossip" / "stray"
    stray.mkdir()
    before = set(world.path.rglob("*"))
    assert to_arrow(world.path).num_rows
    assert verify_repository(world.path).ok
    assert set(world.path.rglob("*")) == before
    assert topics(world.place.home) == ["com.example.chat"]
    with pytest.raises(NotFound):
        open_topic(world.place.home, "stray", create=False)
