"""The pipeline's report in a real browser: every word is inside the page at any width, and nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ropewalk.ledger.block.block import GENESIS, seal
from ropewalk.ledger.bundle.files import export_blocks, verify_bundle
from ropewalk.ledger.bundle.html_report import render_report
from ropewalk.pipeline.report.report import render
from ropewalk.pipeline.source.offsets import Offset
from ropewalk.pipeline.tables.warehouse import Manifest, Warehouse
from tests.browser.chromium import Page, browser, find
from tests.tools import needs_that
from tests.unit.ledger.bundling import TRUST
from tests.unit.ledger.making import NODE, NOON_NS, observed
from tests.waiting import until

pytestmark = [
    pytest.mark.timeout(400),
    needs_that(find(), "no Chromium here"),
]
NOON = datetime(2024, 11, 1, 12, tzinfo=UTC)
WIDE, NARROW = 1400, 320
OUTSIDE = """
[...document.querySelectorAll('h1,h2,p,dt,dd,b,small,.axis span,.bar span')].filter(each => {
  const box = each.getBoundingClientRect();
  return box.width && (box.left < 0 || box.right > innerWidth + 0.5);
}).map(each => each.textContent)
"""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as opened:
        yield opened


def warehouse(path: Path, tables: dict[str, dict[str, list[Any]]]) -> Warehouse:
    """A warehouse with these tables, as ingest leaves one."""
    store = Warehouse(path).make()
    files = {}
    for name, columns in tables.items():
        staged = store.staging(name)
        staged.mkdir(parents=True)
        pq.write_table(pa.table(columns), staged / "part-0.parquet")
        files[name] = store.put_in_place(name, 1)
    store.commit(Manifest(1, None, "/srv/shop.git", "strict", 0, Offset(), Offset(), (), files), [])
    return store


@pytest.fixture
def report(tmp_path: Path) -> Path:
    days = [NOON + timedelta(days=number) for number in range(40) if number % 9 != 4]
    long = "a-place-with-quite-a-long-name.of-a-team.example"
    store = warehouse(
        tmp_path / "tables",
        {
            "events": {
                "engine": ["gitlog"] * (3 * len(days) + 5_000),
                "topic": [long, "prod", "<script>alert(1)</script>"] * len(days) + ["prod"] * 5_000,
                "time": [day for day in days for _ in range(3)] + [days[-1]] * 5_000,
            },
            "deployments": {
                "env": ["prod"] * len(days),
                "status": ["failed" if at % 7 == 0 else "success" for at in range(len(days))],
                "ended": days,
            },
            "deployment_measures": {
                "env": ["prod"], "service": ["web"], "deployments": [35], "per_week": [6.18],
                "failure_rate": [0.1429], "lead_time_median_s": [290.0], "recovery_mean_s": [103_000.0],
            },
            "consumer_lag": {"group": ["dashboard", "idle"], "topic": ["prod", long], "behind": [74, 0]},
        },
    )  # fmt: skip
    store.record_run(
        "ingest", 1_730_462_400_000, {"ok": True, "rows_per_s": 68.4, "ended_ms": 1_730_462_427_900}
    )
    target = tmp_path / "report.html"
    target.write_text(render(store, 1_730_462_400_000), encoding="utf-8")
    return target


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, 768, WIDE])
def test_every_word_is_inside_the_page(page: Page, report: Path, width: int, dark: bool):
    page.open(report, width, dark=dark)
    assert page.ask(OUTSIDE) == []
    assert page.ask("document.documentElement.scrollWidth") <= width
    labels = page.ask("[...document.querySelectorAll('.axis')].map(a => a.lastChild.textContent)")
    assert labels == ["10 Dec 2024", "10 Dec 2024"]  # the last one stands whole
    ink, back = page.ask(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    light = [sum(map(int, text[4:-1].split(","))) for text in (ink, back)]
    assert (light[0] > light[1]) is dark and abs(light[0] - light[1]) > 400


@pytest.mark.slow
def test_text_keeps_its_size_and_bars_fill_the_width(page: Page, report: Path):
    seen = {}
    for width in (NARROW, WIDE):
        page.open(report, width)
        seen[width] = page.ask(
            "[getComputedStyle(document.querySelector('.axis')).fontSize,"
            " document.querySelector('svg').getBoundingClientRect().width]"
        )
    assert seen[NARROW][0] == seen[WIDE][0]
    assert seen[NARROW][1] > 0.75 * NARROW and seen[WIDE][1] > 700


@pytest.mark.slow
def test_report_keeps_empty_days(page: Page, report: Path):
    page.open(report, WIDE)
    strips = page.ask("[...document.querySelectorAll('svg')].map(s => s.getAttribute('viewBox'))")
    assert strips == ["0 0 40 100"] * 4
    tallest = page.ask(
        "[...document.querySelectorAll('svg')].map(s => Math.max(...[...s.querySelectorAll('rect')]"
        ".map(r => r.getBoundingClientRect().height)))"
    )
    assert min(tallest) > 40  # five thousand events of one topic do not flatten the others
    assert "5,036 events, at most 5,001 a day" in page.ask("document.body.innerText")


@pytest.mark.slow
def test_numbers_bear_units(page: Page, report: Path):
    page.open(report, WIDE)
    text = page.ask("document.body.innerText")
    for told in ("14.3 %", "4.8 min", "1.2 days", "68 a second", "74 behind", "0 behind"):
        assert told in text


def test_nothing_is_fetched_and_nothing_from_a_log_runs(page: Page, report: Path):
    page.leave()
    page.errors.clear()
    page.open(report, WIDE)
    page.ask("1")
    assert set(page.requests) <= {report.as_uri()} and not page.errors
    assert page.ask("document.scripts.length") == 0
    assert "<script>alert(1)</script>" in page.ask("document.body.innerText")


@pytest.mark.slow
def test_an_empty_warehouse_says_what_to_do(page: Page, tmp_path: Path):
    target = tmp_path / "report.html"
    target.write_text(render(Warehouse(tmp_path / "tables").make(), 0), encoding="utf-8")
    page.open(target, NARROW)
    assert page.ask(OUTSIDE) == []
    assert "ropewalk pipeline ingest" in page.ask("document.body.innerText")


@pytest.mark.slow
def test_a_warehouse_without_deployments_shows_the_rest(page: Page, tmp_path: Path):
    store = warehouse(
        tmp_path / "tables",
        {"events": {"engine": ["gossip"], "topic": ["chat"], "time": pa.nulls(1, pa.timestamp("us", "UTC"))}},
    )
    target = tmp_path / "report.html"
    target.write_text(render(store, 0), encoding="utf-8")
    page.open(target, WIDE)
    assert page.ask("document.querySelectorAll('.none').length") >= 4


@pytest.mark.slow
def test_audit_page_finds_events_and_runs_no_other_script(page: Page, tmp_path: Path):
    evil = "<script>document.title='owned'</script>"
    raws = [observed(n, event_type=evil if n == 3 else f"demo.kind{n}").raw for n in range(5)]
    block = seal(NODE, channel="c", height=0, prev_block_hash=GENESIS, envelopes=raws, timestamp_ns=NOON_NS)
    bundle, target = tmp_path / "x.tar.zst", tmp_path / "audit.html"
    export_blocks([block], NODE, bundle, created_at="2024-11-01T12:00:00Z")
    found = verify_bundle(bundle, TRUST)
    text = render_report(
        found.report, found.manifest, found.exhibits, TRUST, source=evil, listed=found.listed
    ).replace("<h2>The steps</h2>", f"{evil}<h2>The steps</h2>")  # as if one text had not been escaped
    target.write_text(text, encoding="utf-8")
    page.open(target, WIDE)
    assert page.ask("document.querySelectorAll('#list tbody tr').length") == 5
    page.ask("document.getElementById('find').focus()")
    page.type("KIND2")
    until(lambda: page.ask("document.getElementById('found').textContent") == "1 found")
    assert page.ask("[...document.querySelectorAll('#list tbody tr')].filter(r => !r.hidden)[0].id") == "e0.2"
    assert page.ask("document.title").startswith("Bundle report")
    page.open(target, NARROW)
    assert page.ask(OUTSIDE) == []
