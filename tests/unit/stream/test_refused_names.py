"""What a subscriber hears at once: names nothing will come of, and rules nobody can read; also through proxies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.unit.stream.conftest import publish
from tests.unit.stream.test_proxy import Hop, errors
from tests.unit.stream.test_proxy import said as said_by_proxy
from tests.unit.stream.test_serving import running
from tests.waiting import LIMIT_S

from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.stream.core.access import EVERYBODY, NOBODY, parse_access
from ropewalk.stream.core.connection import SEALED, Connection
from ropewalk.stream.core.frames import BusEvent, ErrorFrame, RefUpdate, Sub, Unsub, encode
from ropewalk.stream.core.window import Window
from ropewalk.stream.proxy.probes import DUE_MAX, PROBE_MS
from ropewalk.stream.serve.follow import Following
from ropewalk.stream.serve.proxy_server import StreamProxy
from ropewalk.stream.serve.repository_stream import RepositoryStream

PAYROLL = parse_access({"topics": {"deny": ["payroll.**", "payroll"]}})


def said(connection: Connection) -> list[dict[str, Any]]:
    return [json.loads(text) for text in connection.take(0, 10_000)]


def rules(log: GitRepository, text: str) -> None:
    (log.store.place.home / "policy.json").write_text(text, encoding="utf-8")


async def error_of(frames: Following) -> ErrorFrame:
    async with asyncio.timeout(LIMIT_S):
        item = await anext(frames)
    assert isinstance(item, ErrorFrame)
    return item


# Refs nobody watches


@pytest.mark.parametrize("ref", ["refs/heads/**", "refs/heads/main", "refs/tags/*", "refs/gatos", "refs/g/x"])
def test_a_pattern_that_no_watched_ref_can_match_is_refused_by_name(ref):
    connection = Connection(Window("01HF", refs_below="refs/gatos/"), now_ms=0)
    connection.receive(encode(Sub(refs=(ref,))), 0)
    _, error = said(connection)
    assert (error["code"], error["ref"], error["dropped"]) == ("NOT_WATCHED", ref, True)
    assert "refs/gatos/" in error["message"]
    assert connection.closing is None


@pytest.mark.parametrize("ref", ["refs/**", "refs/*/x", "refs/g*/**", "refs/**/main", "refs/gatos/x"])
def test_a_pattern_that_a_watched_ref_may_match_is_taken(ref):
    connection = Connection(Window("01HF", refs_below="refs/gatos/"), now_ms=0)
    connection.receive(encode(Sub(refs=(ref,))), 0)
    assert [frame["kind"] for frame in said(connection)] == ["ack"]


def test_a_repository_says_which_refs_it_tells_of(log):
    async def run() -> None:
        async with RepositoryStream(log) as stream, Following(stream.url, refs=["refs/heads/**"]) as frames:
            error = await error_of(frames)
            assert (error.code, error.ref, error.dropped) == ("NOT_WATCHED", "refs/heads/**", True)

    running(run)


# Rules nobody can read


def test_unreadable_rules_reported_once():
    window = Window("01HF")
    connection = Connection(window, now_ms=0, access=NOBODY)
    connection.receive(encode(Sub(topics=("jobs",))), 0)
    connection.receive(encode(Sub(topics=("mail.*",))), 0)
    _, error = said(connection)
    assert (error["code"], error["message"]) == (SEALED.code, SEALED.message)
    connection.set_access(EVERYBODY)
    window.publish(BusEvent("jobs", {"n": 1}), 0)
    assert [frame["payload"] for frame in said(connection)] == [{"n": 1}]
    connection.set_access(NOBODY)
    assert [frame["code"] for frame in said(connection)] == ["POLICY_DENIED"]


def test_private_index_refused_for_good():
    connection = Connection(Window("01HF"), now_ms=0, access=NOBODY)
    connection.receive(encode(Sub(refs=("refs/gatos/private/**",))), 0)
    assert {"refs/gatos/private/**"} == {
        frame.get("ref") for frame in said(connection) if frame.get("dropped")
    }


def test_broken_policy_reported_then_readers_go_on(log):
    async def run() -> None:
        async with (
            RepositoryStream(log, look_s=0.01) as stream,
            StreamProxy(stream.url) as proxy,
            Following(stream.url, topics=["jobs"]) as waiting,
            Following(proxy.url, topics=["jobs"]) as behind,
        ):
            rules(log, "{")
            for frames in (waiting, behind):
                error = await error_of(frames)
                assert (error.code, error.dropped) == ("POLICY_DENIED", None)
                assert "cannot read its policy" in error.message
            async with (
                Following(stream.url, topics=["jobs"]) as late,
                Following(proxy.url, topics=["jobs"]) as late_behind,
            ):
                for frames in (late, late_behind):
                    assert "cannot read its policy" in (await error_of(frames)).message
                rules(log, "{}")
                await asyncio.to_thread(publish, log, "jobs", {"n": 1})
                for frames in (waiting, behind, late, late_behind):
                    async with asyncio.timeout(LIMIT_S):
                        item = await anext(frames)
                    assert isinstance(item, BusEvent)
                    assert item.payload == {"n": 1}

    running(run)


# Names an upstream refuses


def test_proxy_client_hears_of_refused_name():
    hop = Hop()
    hop.upstream.set_access(PAYROLL)
    client = hop.proxy.connect(0)
    client.receive(encode(Sub(topics=("payroll", "jobs"))), 0)
    hop.flow()
    (error,) = [frame for frame in said_by_proxy(client) if frame["kind"] == "error"]
    assert (error["code"], error["topic"], error["dropped"]) == ("POLICY_DENIED", "payroll", True)
    hop.origin.publish(BusEvent("jobs", {"n": 1}), 0)
    hop.flow()
    assert [frame["payload"]["n"] for frame in said_by_proxy(client)] == [1]


def test_what_is_asked_to_hear_a_refusal_is_asked_for_a_while_only():
    hop = Hop()
    client = hop.client("refs/gatos/a")
    assert errors(said_by_proxy(client)) == []
    assert ("ref", "refs/gatos/a") in hop.upstream._subscriptions
    hop.move("a")
    assert [frame["ref"] for frame in said_by_proxy(client)] == [
        "refs/gatos/a"
    ]  # once, though it was asked for twice
    hop.now_ms = PROBE_MS
    hop.proxy.tick(hop.now_ms)
    hop.flow()
    assert list(hop.upstream._subscriptions) == [("ref", "refs/**"), ("topic", "**")]
    hop.move("a")
    assert len([frame for frame in said_by_proxy(client, hop.now_ms) if frame["kind"] == "ref.update"]) == 1


def test_asking_never_takes_more_patterns_than_the_upstream_allows():
    pinned = tuple(f"refs/gatos/p{at}/**" for at in range(18))
    hop = Hop(refs=pinned)
    clients = [hop.client(f"refs/gatos/p0/{at}") for at in range(30)]
    # These are carried, in place of what is only asked.
    clients += [hop.client(f"refs/gatos/other{at}") for at in range(2)]
    for _ in range(20):
        hop.now_ms += PROBE_MS
        hop.proxy.tick(hop.now_ms)
        hop.flow()
        assert hop.upstream.closing is None
    assert {text for _, text in hop.upstream._subscriptions} == {
        *pinned,
        "refs/gatos/other0",
        "refs/gatos/other1",
    }
    assert all(client.closing is None for client in clients)


def test_client_of_many_names_delays_no_other():
    hop = Hop()
    hop.upstream.set_access(PAYROLL)
    restless, other = hop.proxy.connect(0), hop.proxy.connect(0)
    for at in range(DUE_MAX + 50):
        for frame in (Sub(topics=(f"jobs/{at}",)), Unsub(topics=(f"jobs/{at}",))):
            restless.receive(encode(frame), 0)
    other.receive(encode(Sub(topics=("payroll",))), 0)
    for _ in range(3):
        hop.now_ms += PROBE_MS
        hop.proxy.tick(hop.now_ms)
        hop.flow()
    assert errors(said_by_proxy(other, hop.now_ms)) == ["POLICY_DENIED"]


def test_on_a_new_link_names_are_asked_for_anew():
    hop = Hop()
    client = hop.client("refs/heads/**")
    assert errors(said_by_proxy(client)) == []
    hop.origin = Window("origin-1", hop.origin.seq, refs_below="refs/gatos/")
    hop.link()
    assert errors(said_by_proxy(client)) == ["NOT_WATCHED"]


def test_over_two_proxies_a_refusal_reaches_the_client(log):
    rules(log, '{"stream":{"topics":{"deny":["payroll"]}}}')

    async def run() -> None:
        async with (
            RepositoryStream(log) as origin,
            StreamProxy(origin.url) as near,
            StreamProxy(near.url) as far,
            Following(far.url, topics=["payroll"], refs=["refs/heads/**"]) as frames,
        ):
            told = {(await error_of(frames)).code for _ in range(2)}
            assert told == {"POLICY_DENIED", "NOT_WATCHED"}

    running(run)


def test_a_name_that_is_not_refused_gets_its_frames_in_order_and_once():
    hop = Hop()
    client = hop.client("refs/gatos/a", "refs/gatos/*")
    for at in range(3):
        hop.origin.publish(RefUpdate("refs/gatos/a", None, str(at)), 0)
        hop.flow()
    assert [frame["new"] for frame in said_by_proxy(client) if "new" in frame] == ["0", "1", "2"]
