"""The live page in a real browser: what happens is seen, strangers' words stay words, and nothing else is fetched."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ropewalk.gitlog.repository.repository import GitRepository
from tests.browser.chromium import Page, browser, find
from tests.tools import needs_that
from tests.unit.stream.conftest import log, publish  # noqa: F401 - a fixture
from tests.waiting import ended, until

pytestmark = [
    pytest.mark.timeout(400),
    needs_that(find(), "no Chromium here"),
]
COMMAND = Path(sys.executable).with_name("ropewalk")


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with browser() as found:
        yield found


def served(log: GitRepository, port: int = 0) -> AbstractContextManager[dict[str, Any]]:  # noqa: F811
    return running("--repo", str(log.store.place.git_dir), "stream", "serve", "--port", str(port))


@contextmanager
def running(*words: str) -> Iterator[dict[str, Any]]:
    """A command that serves, and what it says when it does."""
    process = subprocess.Popen(
        [str(COMMAND), *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with ended(process, 300):
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())


def shown(tab: Page) -> list[str]:
    """What stands in the rows, newest first."""
    rows = "[...document.querySelectorAll('#rows tr:not([hidden])')]"
    found: list[str] = json.loads(tab.ask(f"JSON.stringify({rows}.map((row) => row.cells[2].textContent))"))
    return found


def state(tab: Page) -> str:
    return str(tab.ask("document.getElementById('state').textContent"))


def write(tab: Page, field: str, text: str, event: str) -> None:
    place = f"document.getElementById({json.dumps(field)})"
    tab.ask(f"{place}.value = {json.dumps(text)}; {place}.dispatchEvent(new Event({json.dumps(event)}))")


def press(tab: Page, key: str) -> None:
    for kind in ("keyDown", "keyUp"):
        tab.call("Input.dispatchKeyEvent", type=kind, key=key, text=key if len(key) == 1 else "")


def test_what_is_published_is_seen_as_it_was_written(tab, log):  # noqa: F811
    with served(log) as said:
        tab.open(said["page"], 1000)
        until(lambda: state(tab) == "live")
        publish(log, "jobs", {"text": "<img src=x onerror=alert(1)>"}, {"text": "gnp.\u202eexe"})
        until(lambda: len(shown(tab)) == 2)
        assert shown(tab) == [
            'test.made {"text":"gnp.\\u202eexe"}',
            'test.made {"text":"<img src=x onerror=alert(1)>"}',
        ]
        assert tab.ask("document.querySelectorAll('#rows img').length") == 0
        tab.ask("document.querySelector('#rows button').click()")
        assert '"topic": "jobs"' in tab.ask("document.querySelector('#rows pre').textContent")
        origin = said["page"].rstrip("/")
        assert all(each.startswith((origin, "data:")) for each in tab.requests if "favicon" not in each)
        assert tab.errors == []


@pytest.mark.slow
def test_through_a_proxy_a_payload_is_seen_as_it_was_published(tab, log):  # noqa: F811
    with served(log) as origin, running("stream", "proxy", origin["url"], "--port", "0") as said:
        tab.open(said["page"], 1000)
        until(lambda: state(tab) == "live")
        publish(log, "jobs", {"n": 1})
        until(lambda: len(shown(tab)) == 1)
        assert shown(tab) == ['test.made {"n":1}']


@pytest.mark.slow
def test_find_narrows_and_the_address_keeps_what_was_asked(tab, log):  # noqa: F811
    with served(log) as said:
        publish(log, "jobs", {"n": "first"}, {"n": "second"})
        publish(log, "other", {"n": "third"})
        tab.open(said["page"] + "#topic=jobs", 1000)
        publish(log, "jobs", {"n": "fourth"})
        until(lambda: any("fourth" in row for row in shown(tab)))
        assert not any("third" in row for row in shown(tab))
        write(tab, "find", "FOURTH", "input")
        assert [row for row in shown(tab) if "fourth" not in row] == []
        assert tab.ask("location.hash") == "#topic=jobs&find=FOURTH"
        write(tab, "find", "", "input")
        write(tab, "topics", "other", "change")
        until(lambda: state(tab) == "live")
        publish(log, "other", {"n": "fifth"})
        until(lambda: any("fifth" in row for row in shown(tab)))
        assert not any("fourth" in row for row in shown(tab))


@pytest.mark.slow
def test_paused_it_stands_still_and_shows_the_rest_afterwards(tab, log):  # noqa: F811
    with served(log) as said:
        tab.open(said["page"], 1000)
        until(lambda: state(tab) == "live")
        press(tab, " ")
        publish(log, "jobs", *({"n": n} for n in range(5)))
        until(lambda: state(tab) == "paused, 5 waiting")
        assert shown(tab) == []
        press(tab, " ")
        until(lambda: len(shown(tab)) == 5)
        assert state(tab) == "live"


@pytest.mark.slow
def test_a_page_that_is_never_painted_keeps_no_more_than_it_would_show(tab, log):  # noqa: F811
    with served(log) as said:
        tab.open(said["page"], 1000)
        until(lambda: state(tab) == "live")
        tab.ask("window.paintLater = requestAnimationFrame; window.requestAnimationFrame = () => 0; 0")
        publish(log, "jobs", *({"n": n} for n in range(2_500)))
        until(lambda: '"n":2499}' in str(tab.ask("JSON.stringify(waiting.at(-1))")))
        assert tab.ask("waiting.length") == tab.ask("ROWS_MAX")
        tab.ask("window.requestAnimationFrame = paintLater; painting = false; paint()")
        assert shown(tab)[0] == 'test.made {"n":2499}'
        assert state(tab) == "live"


@pytest.mark.slow
def test_a_server_that_comes_back_is_found_again(tab, log):  # noqa: F811
    with socket.socket() as probe:  # a port nobody else is given meanwhile, as far as that can be had
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with served(log, port) as said:
        tab.open(said["page"], 1000)
        until(lambda: state(tab) == "live")
        publish(log, "jobs", {"n": "before"})
        until(lambda: len(shown(tab)) == 1)
    until(lambda: state(tab) != "live")
    with served(log, port):
        until(lambda: state(tab) == "live")
        publish(log, "jobs", {"n": "after"})
        until(lambda: any("after" in row for row in shown(tab)))
        assert [row for row in shown(tab) if "before" in row] == shown(tab)[1:]


@pytest.mark.slow
def test_a_pattern_that_is_none_is_told(tab, log):  # noqa: F811
    with served(log) as said:
        tab.open(said["page"] + "#topic=a..b", 1000)
        until(lambda: "a..b" in state(tab))


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 1200])
def test_nothing_is_wider_than_the_page(tab, log, width, dark):  # noqa: F811
    with served(log) as said:
        tab.open(said["page"] + "#topic=**", width, dark=dark)
        until(lambda: state(tab) == "live")
        publish(log, "jobs/" + "long" * 40, {"text": "word" * 400})
        until(lambda: len(shown(tab)) == 1)
        tab.ask("document.querySelector('#rows button').click()")
        assert tab.ask("document.documentElement.scrollWidth") <= width
