"""`ropewalk stream proxy` as a process between others: kill −9 of either side, failover, and wrong commands."""

from __future__ import annotations

import itertools
import signal
import subprocess
from typing import Any

import pytest
from tests.interop.test_stream_commands import Processes, beside, connected, lines, log, repository  # noqa: F401
from tests.unit.cli.conftest import ropewalk  # noqa: F401 - a fixture
from tests.unit.stream.conftest import publish
from tests.unit.stream.items import bus_event

from ropewalk.cli.stream import proxy as command
from ropewalk.stream.core.frames import BusEvent
from ropewalk.stream.core.subscriber import Lost
from ropewalk.stream.core.window import PROXY_BOUNDS
from ropewalk.stream.serve.audit import MISSES
from ropewalk.stream.serve.follow import follow

pytestmark = pytest.mark.timeout(400)
MANY = [word for at in range(21) for word in ("--topic", f"t{at}")]


def proxied(beside: Processes, url: str, port: int = 0, *more: str) -> tuple[Any, dict[str, Any]]:  # noqa: F811
    process = beside.start("proxy", url, "--port", str(port), *more)
    return process, next(lines(process))


def test_proxy_carries_messages_between_processes(beside, log):  # noqa: F811
    _, origin = beside.serve()
    proxy, said = proxied(beside, origin["url"])
    assert (said["upstream"], said["via"]) == (origin["url"], [origin["stream"]])
    readers = []
    for _ in range(2):
        readers.append(beside.start("sub", said["url"], "--topic", "jobs.*", "--limit", "3", "--jsonl"))
        connected(proxy)
    publish(log, "jobs/a", {"id": 7}, {"id": 8}, {"id": 9})
    first, second = (list(lines(reader)) for reader in readers)
    assert [frame["payload"] for frame in first] == [{"id": 7}, {"id": 8}, {"id": 9}]
    assert first == second
    assert all(frame["seq"] == frame["seq_proxy"] > said["seq"] for frame in first)
    assert all(frame["seq_origin"] > origin["seq"] for frame in first)
    proxy.send_signal(signal.SIGTERM)
    assert proxy.wait(60) == 0


def test_proxy_follows_a_restarted_origin(beside, log):  # noqa: F811
    server, origin = beside.serve()
    _, said = proxied(beside, origin["url"])
    with follow(said["url"], topics=["jobs"]) as frames:
        publish(log, "jobs", {"n": 1})
        assert bus_event(next(frames)).payload["n"] == 1
        server.kill()
        server.wait()
        publish(log, "jobs", {"n": 2})
        beside.serve("--port", str(origin["port"]))
        lost = next(frames)
        assert isinstance(lost, Lost)
        assert "the upstream began anew" in lost.message
        publish(log, "jobs", {"n": 3})
        # The new proxy may have connected before the origin looked, and then has the second message, too.
        last = next(
            frame for frame in frames if not (isinstance(frame, BusEvent) and frame.payload["n"] == 2)
        )
        assert isinstance(last, BusEvent)
        assert last.payload["n"] == 3


def test_a_proxy_killed_and_begun_anew_is_noticed_and_followed_again(beside, log):  # noqa: F811
    _, origin = beside.serve()
    proxy, said = proxied(beside, origin["url"])
    with follow(said["url"], topics=["jobs"]) as frames:
        publish(log, "jobs", {"n": 1})
        assert bus_event(next(frames)).payload["n"] == 1
        proxy.kill()
        proxy.wait()
        publish(log, "jobs", {"n": 2})
        proxied(beside, origin["url"], said["port"])
        lost = next(frames)
        assert isinstance(lost, Lost)
        assert lost.reason == "restarted"
        publish(log, "jobs", {"n": 3})
        # The new proxy may have connected before the origin looked, and then has the second message, too.
        last = next(
            frame for frame in frames if not (isinstance(frame, BusEvent) and frame.payload["n"] == 2)
        )
        assert isinstance(last, BusEvent)
        assert last.payload["n"] == 3


def test_proxy_failover_keeps_origin_numbers(beside, log):  # noqa: F811
    _, origin = beside.serve()
    first, one = proxied(beside, origin["url"])
    _, two = proxied(beside, origin["url"])
    assert one["via"] == two["via"]  # the same origin: its numbers may be compared
    publish(log, "jobs", {"n": 1}, {"n": 2}, {"n": 3})
    with follow(one["url"], topics=["jobs"], since_seq=0) as frames:
        seen = [bus_event(frame) for frame in itertools.islice(frames, 3)]
    first.kill()
    first.wait()
    publish(log, "jobs", {"n": 4})
    with follow(two["url"], topics=["jobs"], since_seq=0) as frames:
        again = [bus_event(frame) for frame in itertools.islice(frames, 4)]
    known = [frame.seq_origin for frame in seen]
    assert None not in known
    assert [frame.payload for frame in again if frame.seq_origin not in known] == [{"n": 4}]
    assert [frame.seq_origin for frame in again[:3]] == known


def test_a_proxy_waits_for_an_origin_that_is_not_there_yet(beside, log):  # noqa: F811
    server, origin = beside.serve()
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
    proxy = beside.start("proxy", origin["url"], "--port", "0")
    assert proxy.stderr is not None
    assert f"127.0.0.1:{origin['port']}" in proxy.stderr.readline()
    beside.serve("--port", str(origin["port"]))
    said = next(lines(proxy))
    with follow(said["url"], topics=["jobs"]) as frames:
        publish(log, "jobs", {"n": 1})
        assert bus_event(next(frames)).payload["n"] == 1


def test_a_miss_is_recorded_in_the_repository_that_was_named(beside, log):  # noqa: F811
    _, origin = beside.serve()
    _, said = proxied(beside, origin["url"], 0, "--repo", "log.git")
    with follow(said["url"], topics=["jobs", "stream.replay.*"], since_seq=7) as frames:
        assert isinstance(next(frames), Lost)
        # The proxy tells of it, and so does the origin, once it is recorded in its repository.
        told = [bus_event(next(frames)), bus_event(next(frames))]
    assert [frame.topic for frame in told] == ["stream.replay.miss"] * 2
    assert told[0].payload["missingSeq"] == 8
    assert told[1].payload["ref"] in log.store.head_names(MISSES)


def test_a_repository_that_only_the_environment_names_is_not_written_to(beside, log):  # noqa: F811
    _, origin = beside.serve()
    _, said = proxied(beside, origin["url"])
    with follow(said["url"], topics=["jobs", "stream.replay.*"], since_seq=7) as frames:
        assert isinstance(next(frames), Lost)
        assert bus_event(next(frames)).topic == "stream.replay.miss"
        publish(log, "jobs", {"n": 1})
        assert bus_event(next(frames)).payload["n"] == 1  # and no second word of the miss, from the origin
    assert log.store.head_names(MISSES) == []


@pytest.mark.slow
def test_kill_after_kill_of_either_nothing_is_lost_in_silence(beside, log):  # noqa: F811
    server, origin = beside.serve()
    proxy, said = proxied(beside, origin["url"])
    counted = itertools.count()

    def more() -> list[int]:
        batch = [next(counted) for _ in range(40)]
        publish(log, "jobs", *({"n": n} for n in batch))
        return batch

    with follow(said["url"], topics=["jobs"]) as frames:
        for victim in ("origin", "proxy", "origin", "proxy"):
            sure = more()
            assert [bus_event(next(frames)).payload["n"] for _ in sure] == sure
            underway = more()  # and killed in the middle of it
            if victim == "origin":
                server.kill()
                server.wait()
                server, _ = beside.serve("--port", str(origin["port"]))
            else:
                proxy.kill()
                proxy.wait()
                proxy, _ = proxied(beside, origin["url"], said["port"])
            got = list(itertools.takewhile(lambda item: not isinstance(item, Lost), frames))
            assert [bus_event(frame).payload["n"] for frame in got] == underway[: len(got)]
            last = more()
            after: list[int] = []
            while not after or after[-1] != last[-1]:
                after.append(bus_event(next(frames)).payload["n"])
            # An origin that is slow to look may tell of some of those under way only now.
            assert after == list(range(after[0], last[-1] + 1))
            assert after[0] <= last[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_proxy_also_one_that_still_waits(beside, number):  # noqa: F811
    proxy = beside.start("proxy", "ws://127.0.0.1:1", "--port", "0")
    assert proxy.stderr is not None
    assert "127.0.0.1:1" in proxy.stderr.readline()
    proxy.send_signal(number)
    assert proxy.wait(60) == (130 if number == signal.SIGINT else 0)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("ftp://127.0.0.1", "--port", "0"), 2, "no WebSocket address"),
        (("ws://127.0.0.1:1", "--port", "0", "--ref", "heads/main"), 8, "begin with refs/"),
        (("ws://127.0.0.1:1", "--port", "0", *MANY), 8, "more than 20 topic patterns"),
        (("ws://127.0.0.1:1",), 2, "--port"),
        (("ws://127.0.0.1:1", "--port", "0", "--upstream-token-file", "missing"), 3, "no file missing"),
    ],
)
def test_a_wrong_command_says_so_and_ends_with_its_code(beside, ropewalk, arguments, code, words):  # noqa: F811
    answer = ropewalk("stream", "proxy", *arguments)
    assert answer.code == code, answer.err
    assert words in answer.err
    assert "Traceback" not in answer.err


def test_a_proxy_of_itself_says_that_it_is_a_loop(beside):  # noqa: F811
    server, origin = beside.serve()
    proxy, said = proxied(beside, origin["url"])
    server.kill()
    server.wait()
    loop: subprocess.Popen[str] = beside.start("proxy", said["url"], "--port", str(origin["port"]))
    assert next(lines(loop))["upstream"] == said["url"]
    assert proxy.wait(120) == 2  # it comes back to its upstream, which now leads to itself
    assert proxy.stderr is not None
    assert "a loop" in proxy.stderr.read()


def test_the_numbers_in_the_help_are_those_of_the_engine():
    expected = (command.REPLAY_FRAMES, command.REPLAY_MINUTES * 60_000)
    assert (PROXY_BOUNDS.frames_max, PROXY_BOUNDS.age_ms_max) == expected
