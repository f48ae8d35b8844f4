"""A page in a real browser on a stream: one that may connect is told what happens, one that may not learns nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ropewalk.gitlog.repository.repository import GitRepository
from tests.browser.chromium import Page, browser, find
from tests.tools import needs_that
from tests.unit.stream.conftest import log, publish  # noqa: F401 - a fixture
from tests.waiting import ended

pytestmark = [
    pytest.mark.timeout(400),
    needs_that(find(), "no Chromium here"),
]
COMMAND = Path(sys.executable).with_name("ropewalk")
PAGE = """<!doctype html><meta charset="utf-8"><title>Jobs</title><ul></ul><script>
const follow = (url) => {
  window.said = []
  const socket = new WebSocket(url)
  socket.onclose = (event) => said.push({closed: event.code})
  socket.onmessage = (message) => {
    const frame = JSON.parse(message.data)
    said.push(frame)
    if (frame.kind === "ack") socket.send('{"op":"sub","topics":["jobs.*"],"sinceSeq":0}')
    if (frame.kind === "ping") socket.send('{"kind":"pong"}')
  }
}
</script>"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    (tmp_path / "jobs.html").write_text(PAGE, encoding="utf-8")
    with browser() as found:
        found.open(tmp_path / "jobs.html", 800)
        yield found


@contextmanager
def served(log: GitRepository, *options: str) -> Iterator[str]:  # noqa: F811
    command = [
        str(COMMAND),
        "--repo",
        str(log.store.place.git_dir),
        "stream",
        "serve",
        "--port",
        "0",
        *options,
    ]
    with ended(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True), 300
    ) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]


def said(page: Page, count: int) -> list[dict[str, Any]]:
    end = time.monotonic() + 60
    found: list[dict[str, Any]]
    while len(found := json.loads(page.ask("JSON.stringify(said)"))) < count:
        assert time.monotonic() < end, found
    return found


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [True, False], ids=["listed", "not listed"])
def test_a_page_is_told_what_happens_if_its_origin_is_listed(page, log, allowed):  # noqa: F811
    # The origin of a page that is a file is `null`.
    with served(log, *(("--origin", "null") if allowed else ())) as url:
        page.ask(f"follow({json.dumps(url)})")
        (first,) = said(page, 1)[:1]
        publish(log, "jobs/pending", {"id": 7})
        if allowed:
            ack, event = said(page, 2)
            assert ack["kind"] == "ack"
            assert (event["topic"], event["payload"]) == ("jobs/pending", {"id": 7})
        else:
            assert first == {"closed": 1006}
