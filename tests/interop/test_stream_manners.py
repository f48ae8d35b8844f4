"""What somebody at a terminal learns from `ropewalk stream`: at once, in words, and as they typed it."""

from __future__ import annotations

import socket
import subprocess

import pytest
from tests.interop.test_stream_commands import (  # noqa: F401 - fixtures
    Processes,
    beside,
    connected,
    log,
    repository,
)
from tests.unit.cli.conftest import ropewalk  # noqa: F401 - a fixture
from tests.unit.stream.conftest import publish

pytestmark = pytest.mark.timeout(400)
LIMIT_S = 120  # far above what anything here takes


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_sub_ends_when_the_reader_of_its_pipe_has_gone(beside, log, more):  # noqa: F811
    server, said = beside.serve()
    reader = beside.start("sub", said["url"], "--topic", "**", *more)
    connected(server)
    publish(log, "jobs", {"n": 1})
    assert '"n":1' in reader.stdout.readline()
    reader.stdout.close()  # as `head -1` does; no further frame comes
    assert reader.wait(LIMIT_S) == 0
    assert reader.stderr.read() == ""


def test_sub_ends_when_the_reader_of_its_socket_has_gone(beside, log):  # noqa: F811
    """Some programs give their children sockets for pipes."""
    server, said = beside.serve()
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            reader = beside.start("sub", said["url"], "--topic", "**", stdout=theirs)
        connected(server)
    assert reader.wait(LIMIT_S) == 0
    assert reader.stderr.read() == ""


def test_what_is_refused_for_good_is_not_tried_again(beside):  # noqa: F811
    _, said = beside.serve()
    patterns = [word for number in range(21) for word in ("--topic", f"t{number}")]
    reader = beside.start("sub", said["url"], *patterns)
    _, errors = reader.communicate(timeout=LIMIT_S)
    assert reader.returncode == 8
    assert "at most 20 fit one connection" in errors and "trying again" not in errors


def test_refs_that_are_never_told_of_are_said_at_once(beside, log):  # noqa: F811
    _, said = beside.serve()
    alone = beside.start("sub", said["url"], "--ref", "refs/heads/**")
    _, errors = alone.communicate(timeout=LIMIT_S)
    assert alone.returncode == 8
    assert "refs must be below refs/gatos/" in errors and "refs/gatos/**" in errors
    among = beside.start("sub", said["url"], "--ref", "refs/heads/**", "--topic", "jobs", "--limit", "1")
    assert "NOT_WATCHED" in among.stderr.readline()
    publish(log, "jobs", {"n": 1})
    out, _ = among.communicate(timeout=LIMIT_S)
    assert (among.returncode, '{"n":1}' in out) == (0, True)


def test_a_number_no_frame_can_have_is_refused_as_it_was_typed(ropewalk):  # noqa: F811
    answer = ropewalk(
        "stream", "sub", "ws://127.0.0.1:9", "--topic", "jobs", "--since-seq", "9007199254740993"
    )
    assert answer.code == 8
    assert "there is no frame 9007199254740993" in answer.err


@pytest.mark.parametrize(
    "origin", ["foo", "ops.example", "https://ops.example/", "https://ops.example/page", "https://", "*"]
)
def test_what_is_no_origin_is_refused(ropewalk, origin):  # noqa: F811
    for command in (("serve",), ("proxy", "ws://127.0.0.1:9")):
        answer = ropewalk("stream", *command, "--port", "0", "--origin", origin)
        assert answer.code == 2 and "must be an origin" in answer.err


def test_origins_as_browsers_write_them_are_taken(beside):  # noqa: F811
    origins = ("https://ops.example", "http://localhost:3000", "http://[::1]:8080", "null")
    _, said = beside.serve("--port", "0", *(word for each in origins for word in ("--origin", each)))
    assert said["port"]


def test_through_a_proxy_a_payload_is_printed_as_it_was_published(beside, log):  # noqa: F811
    _, origin = beside.serve()
    proxy = beside.start("proxy", origin["url"], "--port", "0")
    url = _url(proxy)
    publish(log, "jobs", {"n": 1})
    asked = ("sub", url, "--topic", "jobs", "--since-seq", "0", "--limit", "1")
    plain, _ = beside.start(*asked).communicate(timeout=LIMIT_S)
    assert plain.rstrip().endswith('{"n":1}')


def _url(process: subprocess.Popen[str]) -> str:
    import json

    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    assert isinstance(url, str)
    return url
