"""Share logs through real remotes on loopback: ssh with a local sshd, http with git-http-backend."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.tools import needs_that
from tests.waiting import LIMIT_S, ended, until

from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.sharing.exchange import pull, push
from ropewalk.gitlog.verify.log_check import verify_log

pytestmark = pytest.mark.slow
SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")


def git(*words: str | Path) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout


def share(url: str, folder: Path) -> None:
    """Let two clones append to one log and push; both must end with the same log."""
    for name in ("ada", "bob"):
        git("clone", "-q", url, folder / name)
        with open_repository(folder / name) as log:
            log.append("prod", {"type": "t", "payload": {"by": name}})
            done = push(log, "origin", who=name)
            assert done.pushed == {"shiplog/prod": 1}
    assert done.reappended == {"shiplog/prod": 1}
    with open_repository(folder / "ada") as log:
        assert pull(log, "origin", who="ada").fetched == {"shiplog/prod": 1}
    for name in ("ada", "bob"):
        with open_repository(folder / name) as log:
            assert [event.payload["by"] for event in log.read("prod").events] == ["ada", "bob"]
            assert verify_log(log.store, SHIPLOG, "prod").ok


class Backend(BaseHTTPRequestHandler):
    """git-http-backend behind HTTP, as a CGI program."""

    root: Path

    def _answer(self) -> None:
        path, _, query = self.path.partition("?")
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else self._chunks()
        env = {
            **os.environ,
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_USER": "tester",
            "REMOTE_ADDR": "127.0.0.1",
        }
        done = subprocess.run(
            ["git", "http-backend"], input=body, env=env, capture_output=True, timeout=LIMIT_S
        )
        head, _, rest = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200 OK").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest)

    do_GET = do_POST = _answer

    def _chunks(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return b""
        out = b""
        while size := int(self.rfile.readline(), 16):
            out += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return out

    def log_message(self, *_given: object) -> None:
        """Say nothing."""


def test_logs_are_shared_over_http(tmp_path):
    git("init", "-q", "--bare", tmp_path / "team.git")
    git("-C", tmp_path / "team.git", "config", "http.receivepack", "true")
    handler = type("Served", (Backend,), {"root": tmp_path})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            share(f"http://127.0.0.1:{server.server_address[1]}/team.git", tmp_path)
        finally:
            server.shutdown()
            thread.join(LIMIT_S)


@contextlib.contextmanager
def sshd(folder: Path, port: int) -> Iterator[None]:
    """An sshd on loopback that lets one key in."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\n"
    )
    assert SSHD is not None
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(parents=True, exist_ok=True)  # privilege separation needs it
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "config"], stderr=subprocess.DEVNULL)
    with ended(server):

        def listens() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        until(listens)
        yield


@needs_that(SSHD, "there is no sshd here")
def test_logs_are_shared_over_ssh(tmp_path, monkeypatch):
    git("init", "-q", "--bare", tmp_path / "team.git")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with sshd(tmp_path, port):
        options = (
            f"-i {tmp_path}/user -oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null -oBatchMode=yes"
        )
        monkeypatch.setenv("GIT_SSH_COMMAND", f"ssh -q {options}")
        share(f"ssh://{getpass.getuser()}@127.0.0.1:{port}{tmp_path}/team.git", tmp_path)
