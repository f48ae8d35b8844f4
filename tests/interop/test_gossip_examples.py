"""The gossip examples over the network: between processes, and with the npm package as a peer."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.test_gossip_peers import NodePeer, package  # noqa: F401 - a fixture
from tests.tools import needs
from tests.waiting import LIMIT_S, until

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.timeout(600)


class Example:
    """An example in a process, fed by lines and read by lines."""

    def __init__(self, name: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / name), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip())

    def type(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def line(self) -> str:
        return self._lines.get(timeout=LIMIT_S)

    def until(self, wanted: str) -> None:
        """Read lines up to one."""
        until(lambda: self.line() == wanted)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def start() -> Iterator[type[Example]]:
    running: list[Example] = []

    class Started(Example):
        def __init__(self, name: str, *arguments: str) -> None:
            super().__init__(name, *arguments)
            running.append(self)

    yield Started
    for example in running:
        example.close()


def url_of(example: Example) -> str:
    return example.line().removeprefix("others join with --connect ")


def test_chat_example_between_processes(start):
    ada = start("gossip_live_chat.py", "ada", "--listen", "0")
    url = url_of(ada)
    ada.type("the tide is at six")
    assert ada.line() == "ada: the tide is at six"
    bob = start("gossip_live_chat.py", "bob", "--connect", url)
    assert bob.line() == "ada: the tide is at six"
    bob.type("I bring the \x1b[31mrope")
    assert ada.line() == bob.line() == "bob: I bring the ?[31mrope"


def test_register_example_between_processes(start):
    ada = start("gossip_register.py", "--listen", "0")
    url = url_of(ada)
    bob, cleo = (start("gossip_register.py", "--connect", url) for _ in range(2))
    ada.type("colour=red")
    for each in (ada, bob, cleo):
        each.until(json.dumps({"colour": "red"}))
    bob.type("colour=teal")
    for each in (ada, bob, cleo):
        each.until(json.dumps({"colour": "teal"}))


@pytest.mark.slow
@needs("node", "npm")
def test_examples_with_an_npm_peer(start, package):  # noqa: F811
    chat, register = (
        start("gossip_live_chat.py", "ada", "--listen", "0"),
        start("gossip_register.py", "--listen", "0"),
    )
    for example, topic, sent, shown, typed in (
        (chat, "com.example.live-chat", {"name": "node", "text": "hello"}, "node: hello", "hi"),
        (register, "com.example.register", {"set": "size", "to": 7}, '{"size": 7}', "colour=red"),
    ):
        node = NodePeer(package, topic)
        try:
            node.do("connect", url=url_of(example))
            node.do("append", payloads=[sent])
            example.until(shown)
            example.type(typed)
            until(lambda node=node: node.status()["count"] == 2)  # type: ignore[misc]
        finally:
            node.close()
