"""A real Chromium without a window, driven over its own protocol: open a page, change its size, ask what it shows."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.waiting import until

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Answers to a question that met a navigation.
LEFT = (
    "navigated or closed",
    "context was destroyed",
    "Cannot find context",
    "Cannot find default execution context",
)
START_S = 120  # a cold browser on a loaded machine


def find() -> str | None:
    """The browser, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._number = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Ask and wait for the answer, empty if a navigation cut it off; what happens meanwhile is noted."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(self.socket.recv(timeout=START_S))
            if answer.get("id") == number:
                if any(each in answer.get("error", {}).get("message", "") for each in LEFT):
                    return {}
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def open(self, path: Path | str, width: int, *, dark: bool = False) -> None:
        """Show a file or an address at a width, light or dark, and wait until it stands."""
        url = path if isinstance(path, str) else path.absolute().as_uri()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        self._go("Page.navigate", url=url)

    def reload(self) -> None:
        """Load the page again and wait until it stands."""
        self._go("Page.reload")

    def click(self, selector: str) -> None:
        """Click an element once it is there."""
        found = f"document.querySelector({json.dumps(selector)})"
        until(lambda: self.ask(f"{found} !== null && ({found}.click(), true)"), START_S)

    def _go(self, method: str, **parameters: Any) -> None:
        """Leave the document: what is asked afterwards is never answered by the old one."""
        self.ask("window.left = true")
        answer = self.call(method, **parameters)
        if method == "Page.navigate" and "loaderId" not in answer:
            return  # another place in the same document
        until(lambda: self.ask("!window.left && document.readyState === 'complete'"), START_S)

    def leave(self) -> None:
        """Leave the page, so that no request of it comes later, and forget its requests."""
        self.open("about:blank", 800)
        self.requests.clear()

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page; one that a navigation cuts off is asked again."""
        answer: dict[str, Any] = {}
        while not answer:
            answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as a person does."""
        for key in keys:
            code = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40}.get(key, 0)
            text = "\r" if key == "Enter" else key if len(key) == 1 else ""
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        """Write into what has the focus."""
        self.call("Input.insertText", text=text)

    def picture(self) -> bytes:
        """Return what the page shows, as PNG."""
        return base64.b64decode(
            self.call("Page.captureScreenshot", format="png", optimizeForSpeed=True)["data"]
        )

    def _note(self, told: dict[str, Any]) -> None:
        if told.get("method") == "Network.requestWillBeSent":
            self.requests.append(told["params"]["request"]["url"])
        if told.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
            self.errors.append(json.dumps(told["params"]))


@contextmanager
def browser() -> Iterator[Page]:
    """A browser with one tab, gone afterwards with all it kept."""
    program = find()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [
                program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--remote-debugging-port=0",
                f"--user-data-dir={folder}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            # No pings of ours: nobody reads their answers while a test does something else.
            with connect(_address(Path(folder), process), max_size=None, ping_interval=None) as socket:
                yield Page(socket)
        finally:
            process.kill()
            process.wait()


def _address(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """Where it listens, which it writes down once it does."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "the browser ended"
        lines = (
            (folder / "DevToolsActivePort").read_text().splitlines()
            if (folder / "DevToolsActivePort").exists()
            else []
        )
        if len(lines) == 2:
            return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
        time.sleep(0.05)
    raise AssertionError("the browser does not listen")
