"""Screenshots of the console over the data of `ropewalk demo`: every page in light, dark and narrow.

They land in build/screenshots; `ROPEWALK_SCREENSHOTS=docs/guide/console` writes those of the guide and the README.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.browser.chromium import Page, browser, find
from tests.browser.palette import shrink
from tests.browser.test_console import ROOT, drop, envelope_ids, shows
from tests.serving import Served, command, environment, serving
from tests.tools import needs_that
from tests.waiting import until

BYTES_MAX = 120_000
SHOWN = ROOT / os.environ.get("ROPEWALK_SCREENSHOTS", "build/screenshots")
MODES = {"light": (1440, 900), "dark": (1440, 900), "narrow": (360, 760)}
SETTLE_S = 0.6  # plots are drawn after the words are there


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_that(find(), "no Chromium here")
def test_screenshots_of_every_page(tmp_path: Path):
    (tmp_path / ".gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.com\n")
    made = subprocess.run(
        command("demo", str(tmp_path / "demo")),
        env=environment(tmp_path),
        capture_output=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    (tmp_path / "demo/demo.git").rename(tmp_path / "log.git")
    SHOWN.mkdir(parents=True, exist_ok=True)
    with (
        serving(tmp_path, "--warehouse", str(tmp_path / "demo/warehouse"), limit_s=900) as server,
        browser() as tab,
    ):
        until(lambda: max(len(each["samples"]) for each in server("GET", "/consumer-lag").json["groups"]) > 1)
        for name, (path, words) in pages(server).items():
            for mode in MODES:
                look(tab, server, path, mode)
                if name == "verify":
                    shows(tab, "Drop files here")
                    drop(tab, tmp_path / "demo/trust.json")
                    shows(tab, "Signers are judged by trust.json")
                    drop(tab, tmp_path / "demo/proof.json")
                shows(tab, words)
                time.sleep(SETTLE_S)
                found = shrink(tab.picture())
                assert len(found) <= BYTES_MAX
                (SHOWN / f"{name}-{mode}.png").write_bytes(found)
        assert tab.errors == []


def pages(server: Served) -> dict[str, tuple[str, str]]:
    found = server("GET", "/history?log=shiplog/prod&limit=3").json["events"]
    envelope = envelope_ids(server, "demo.audit", 1)[5]
    return {
        "overview": ("/", "Entries per day"),
        "logs": (f"/logs/shiplog/prod?at={found[1]['ulid']}", "Content id recomputed"),
        "deployments": ("/deployments", "Change failure rate"),
        "channel": ("/ledger/demo.audit", "seals now"),
        "envelope": (f"/ledger/demo.audit/envelope/{envelope}", "The proof holds."),
        "gossip": ("/gossip/com.example.notes", "Graph"),
        "consumers": ("/consumers", "at the head"),
        "pipeline": ("/pipeline", " rows in "),
        "verify": ("/verify", "recomputed root"),
    }


def look(tab: Page, server: Served, path: str, mode: str) -> None:
    """Open a page in the size and colours of a mode."""
    width, height = MODES[mode]
    tab.open(server.facts["url"] + path, width, dark=mode == "dark")
    tab.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True
    )
