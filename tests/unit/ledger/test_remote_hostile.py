"""Peers that do not keep to the protocol, on either side of a remote channel: nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509 import load_pem_x509_certificate
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ledger.certifying import Authority
from tests.unit.ledger.making import ADA, NODE, NOON, observed
from tests.unit.ledger.test_remote import served
from tests.waiting import LIMIT_S, soon

from ropewalk.errors import (
    Denied,
    Invalid,
    NotFound,
    RopewalkError,
    SigInvalid,
    TooLarge,
    Unavailable,
    Unverified,
)
from ropewalk.ledger.channel.channel import verify_blocks
from ropewalk.ledger.envelope.envelope import build, parse
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.remote.client import LedgerClient
from ropewalk.ledger.remote.messages import (
    PROTOCOL,
    RemoteMessage,
    compress,
    decompress,
    error_of,
    outcome_of,
    outcome_part,
    parse_message,
)
from ropewalk.ledger.remote.negotiate import Capabilities, advertise, answer
from ropewalk.ledger.remote.server import LedgerServer
from ropewalk.net.frames import FrameDecoder, frame, pack_parts, unpack_parts
from ropewalk.net.log_rate_limit import LogRateLimit
from ropewalk.net.tls import client_tls, server_tls

pytestmark = pytest.mark.timeout(300)

# Frames and messages as values.


@settings(deadline=None, max_examples=80)
@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 40), min_size=1))
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(bodies, cuts):
    raw, found, frames, at, turn = b"".join(map(frame, bodies)), [], FrameDecoder(50), 0, 0
    while at < len(raw):
        step = cuts[turn % len(cuts)]
        found += frames.receive(raw[at : at + step])
        at, turn = at + step, turn + 1
    assert found == bodies and frames.held == 0


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=200))
def test_any_bytes_are_parts_or_refused(raw):
    try:
        parts = unpack_parts(raw, 10)
    except Invalid:
        return
    assert pack_parts(parts) == raw


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.binary(max_size=60) | st.sampled_from([b'{"op":"head","number":1}', b"{}", b"[]"]), max_size=3
    )
)
def test_any_parts_are_a_message_or_refused(parts):
    try:
        message = parse_message(parts)
    except Invalid:
        return
    assert parse_message(message.parts_out()) == message


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=100))
def test_any_bytes_are_unpacked_within_their_limit_or_refused(raw):
    with contextlib.suppress(Invalid):
        assert len(decompress(raw, 1000)) <= 1000


def test_a_bomb_is_refused_before_it_goes_off():
    with pytest.raises(TooLarge, match="a message of 100000000 bytes"):
        decompress(compress(bytes(100_000_000)), 1 << 20)
    with pytest.raises(TooLarge, match="more than 2 parts"):
        unpack_parts(pack_parts([b""] * 3), 2)


@pytest.mark.parametrize("kind", [each for each in RopewalkError.__subclasses__() if each.code != "Internal"])
def test_every_error_comes_through_as_itself(kind):
    error = kind("it was wrong", advice="Do better.", instance="urn:x", height=7)
    again = outcome_of(outcome_part(error))
    assert isinstance(again, kind) and again.to_problem() == error.to_problem()


def test_a_problem_nobody_knows_is_still_an_error_and_a_huge_one_is_cut():
    assert error_of({"code": "Novel", "detail": "x", "from": 1, "not a name": 2}).detail == "x"
    assert len(outcome_part(Invalid("x" * 100_000, what="y" * 1_000_000))) < 10_000
    assert isinstance(outcome_of(outcome_part(Invalid("x", what={1, 2}))), Invalid)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"envelope_id":"00","height":1}', b'{"height":true}'])
def test_what_is_neither_receipt_nor_problem_is_refused(raw):
    with pytest.raises(Invalid):
        outcome_of(raw)


# Clients that misbehave.

Act = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def advertisement(**members: Any) -> Envelope:
    able = Capabilities(("tcp",), **members)
    return advertise(ADA, able, timestamp=NOON, correlation_id="c")


def opening(said: Envelope | None = None, channel: str = "audit") -> bytes:
    raw = (said or advertisement()).raw
    return frame(pack_parts(RemoteMessage("open", 0, {"channel": channel}, (raw,)).parts_out()))


async def heard(reader: asyncio.StreamReader) -> list[RemoteMessage]:
    """All messages until the other side ends, or says why it will."""
    frames = FrameDecoder(1 << 25)
    messages: list[RemoteMessage] = []
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            messages += [parse_message(unpack_parts(body, 10_000)) for body in frames.receive(data)]
            if messages and (messages[-1].op, messages[-1].number) == ("problem", 0):
                break
    return messages


def said_to(home: Path, raw: bytes, *, end: bool = True, **options: Any) -> list[RemoteMessage]:
    """What a server answers to these bytes, while another client goes on as if nothing were."""

    async def main() -> list[RemoteMessage]:
        async with served(home, **options) as server, LedgerClient(server.url, "audit") as other:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(raw)
            if end:
                writer.write_eof()
            answers = await heard(reader)
            writer.close()
            assert isinstance(await other.submit(observed(1).raw), LedgerReceipt)
            await soon(lambda: len(server.sessions) == 1)
            return answers

    return asyncio.run(main())


def problem(messages: list[RemoteMessage]) -> RopewalkError:
    (part,) = messages[-1].parts
    found = outcome_of(part)
    assert messages[-1].op == "problem" and isinstance(found, RopewalkError)
    return found


def asking(op: Any, number: int, *parts: bytes, **facts: Any) -> bytes:
    return frame(pack_parts(RemoteMessage(op, number, facts, parts).parts_out()))


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a frame of 1195725856 bytes"),
        (frame(b"garbage"), "a part of 1734439522 bytes where 3 are left"),
        (frame(b""), "without parts"),
        (frame(pack_parts([b"{}"])), "none we know"),
        (frame(pack_parts([b'{"op":"head","number":1}'])), "begins with `open`"),
        (opening(observed(1)), "where transport.capability belongs"),
        (opening(channel="nope"), "is served here"),
        (opening(advertisement(supported_versions=("9.0.x",))), "no version in common"),
    ],
)
def test_whoever_does_not_open_a_session_is_told_why_and_let_go(tmp_path, raw, complaint):
    assert complaint in problem(said_to(tmp_path, raw)).detail


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        ((5 << 20).to_bytes(4, "big"), "a frame of 5242880 bytes"),
        (frame(b"\0\0"), "in the middle of a length"),
        (asking("head", 3), "number 3 where 2 belongs"),
        (asking("outcomes", 2), "is not a request"),
        (asking("head", 2, b"part"), "is not a request"),
        (opening(), "number 0 where 2 belongs"),
        (frame(pack_parts([b'{"op":"append","number":2}'] + [b""] * 9_000)), "more than 8194 parts"),
    ],
)
def test_failing_session_answers_earlier_requests(tmp_path, raw, complaint):
    opened, outcomes, last = said_to(tmp_path, opening() + asking("append", 1, observed(5).raw) + raw)
    assert (opened.op, outcomes.op) == ("opened", "outcomes")
    assert isinstance(outcome_of(outcomes.parts[0]), LedgerReceipt)
    assert complaint in problem([last]).detail


def test_a_request_that_makes_no_sense_is_refused_alone(tmp_path):
    raw = (
        opening()
        + asking("blocks", 1, **{"from": -1})
        + asking("append", 2)
        + asking("append", 3, b"", b"{}")
    )
    _, first, second, third = said_to(tmp_path, raw)
    assert first.op == "problem" and first.number == 1
    assert (second.op, second.parts, third.op, len(third.parts)) == ("outcomes", (), "outcomes", 2)


def test_a_restricted_envelope_is_refused_there_and_does_not_even_leave(tmp_path):
    secret = observed(1, confidentiality={"level": "restricted"}).raw
    _, outcomes = said_to(tmp_path, opening() + asking("append", 1, secret))
    assert isinstance(outcome_of(outcomes.parts[0]), Denied)
    heard_of: list[RemoteMessage] = []

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await agree(reader, writer)
        heard_of.append(await asked_of(reader))
        writer.write(asking("problem", 1, outcome_part(Invalid("heard"))))
        await reader.read()

    async def act(remote: LedgerClient) -> Any:
        return await remote.submit_many([secret, observed(2).raw])

    first, second = against(reply, act)
    assert isinstance(first, Denied) and isinstance(second, Invalid)
    assert [message.parts for message in heard_of] == [(observed(2).raw,)]


def test_a_frame_that_stays_unfinished_is_not_waited_for(tmp_path):
    whole = opening()
    late = said_to(tmp_path, whole[:-1], end=False, idle_s=0.2)
    assert "made no progress" in problem(late).detail
    (opened,) = said_to(tmp_path, whole + b"\0\0", end=False, idle_s=0.2)
    assert opened.op == "opened"
    assert "ended in the middle of a frame" in problem(said_to(tmp_path, whole[:-1])).detail


def test_a_client_that_reads_nothing_is_held_up_and_then_let_go(tmp_path):
    async def main() -> None:
        large = [observed(i, payload={"n": i, "text": "x" * 60_000}).raw for i in range(40)]
        async with served(tmp_path, idle_s=0.5) as server, LedgerClient(server.url, "audit") as other:
            await other.submit_many(large)
            before = set(server.sessions)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
            writer.write(opening())
            for number in range(1, 41):  # far more than fits into all buffers on the way
                writer.write(asking("blocks", number, **{"from": 0}))
            await soon(lambda: bool(server.sessions - before))
            (slow,) = server.sessions - before
            await soon(lambda: slow not in server.sessions)  # it has gone; whoever reads is answered
            assert (await other.head())["envelopes"] == 40
            writer.transport.abort()
            del reader

    asyncio.run(main())


def test_no_more_is_held_than_agreed_whatever_is_sent(tmp_path):
    async def main() -> None:
        batch = [observed(i, payload={"n": i, "text": "x" * 30_000}).raw for i in range(30)]
        async with served(tmp_path) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(opening())
            await reader.read(1)
            (session,) = server.sessions
            held = []
            for number in range(1, 60):  # 54 MB, faster than they can be judged
                writer.write(asking("append", number, *batch))
                await writer.drain()
                held.append(session._held)
            assert 0 < max(held) <= (4 << 20) + (64 << 10)
            writer.transport.abort()

    asyncio.run(main())
    assert verify_blocks(tmp_path, "audit").ok


def test_more_sessions_than_allowed_are_turned_away(tmp_path):
    async def main() -> None:
        async with served(tmp_path, sessions_max=1) as server, LedgerClient(server.url, "audit") as first:
            with pytest.raises(Unavailable, match="1 connections are open"):
                await LedgerClient(server.url, "audit").__aenter__()
            assert await first.head()

    asyncio.run(main())


# TLS.


def refused_over_tls(
    home: Path,
    authority: Authority,
    context: ssl.SSLContext,
    first_s: float = 0.0,
) -> RopewalkError:
    async def main() -> RopewalkError:
        own = server_tls(authority.files("server"), PROTOCOL)
        async with served(home, tls=own) as server:
            with pytest.raises(RopewalkError) as refused:
                await LedgerClient(server.url, "audit", tls=context, first_s=first_s).__aenter__()
            good = client_tls(authority.files("client"), PROTOCOL)
            async with LedgerClient(server.url, "audit", tls=good) as remote:  # others come in all the same
                assert (await remote.submit(observed(1).raw)).height == 0
            return refused.value

    return asyncio.run(main())


def test_a_client_without_the_right_certificate_does_not_come_in(tmp_path, authority):
    other = Authority(tmp_path, "other")
    stranger = client_tls(other.files("stranger", authority.roots), PROTOCOL)
    error = refused_over_tls(tmp_path, authority, stranger, first_s=3600)  # waiting makes it no better
    assert isinstance(error, Unavailable)
    bare = ssl.create_default_context(cafile=str(authority.roots))
    bare.set_alpn_protocols([PROTOCOL])
    assert isinstance(refused_over_tls(tmp_path, authority, bare), Unavailable)


def test_the_log_says_whose_certificate_came_in_and_why_another_did_not(tmp_path, authority, caplog):
    caplog.set_level(logging.INFO, "ropewalk.ledger.remote")
    mine = authority.files("me")
    shown = load_pem_x509_certificate(mine.certificate.read_bytes()).fingerprint(SHA256()).hex()

    async def main() -> None:
        own = server_tls(authority.files("server"), PROTOCOL)
        async with served(tmp_path, tls=own) as server:
            async with LedgerClient(server.url, "audit", tls=client_tls(mine, PROTOCOL), key=ADA) as remote:
                await remote.head()
            with pytest.raises(NotFound):
                async with LedgerClient(server.url, "nope", tls=client_tls(mine, PROTOCOL)):
                    pass
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()

    asyncio.run(main())
    stranger = Authority(tmp_path, "other").files("stranger", authority.roots)
    refused_over_tls(tmp_path, authority, client_tls(stranger, PROTOCOL))
    said = "\n".join(caplog.messages)  # not `text`: Spark, once imported, formats that as JSON
    assert f"connected to audit as CN=me, sha256 {shown}, with the key {ADA.public.did()}" in said
    assert f'(CN=me, sha256 {shown}): refused: no channel "nope"' in said
    assert "refused: TLS: http request" in said
    assert "refused: its certificate is not accepted: " in said


def test_strangers_cannot_flood_the_log():
    async def main() -> list[str]:
        said: list[str] = []
        told = LogRateLimit(said.append, lines_max=2, every_s=0.01)
        for number in range(5):
            told(f"stranger {number}")
        await soon(lambda: len(said) == 3)
        told("one more")
        told.close()
        return said

    said = asyncio.run(main())
    assert said == ["stranger 0", "stranger 1", "3 more were refused within 0.01 s", "one more"]


def test_a_server_without_the_right_certificate_gets_nothing(tmp_path, authority):
    other = Authority(tmp_path, "other")
    wrong = client_tls(authority.files("me", other.roots), PROTOCOL)
    error = refused_over_tls(tmp_path, authority, wrong, first_s=3600)
    assert isinstance(error, Unavailable) and "certificate is not accepted" in error.detail
    assert "--server-ca" in error.advice_now


def test_another_protocol_in_tls_is_refused_on_both_sides(tmp_path, authority):
    error = refused_over_tls(tmp_path, authority, client_tls(authority.files("me"), "h2"))
    assert isinstance(error, Unavailable) and PROTOCOL in error.detail

    async def main() -> RemoteMessage:
        own = server_tls(authority.files("server"), PROTOCOL)
        async with served(tmp_path, tls=own) as server:
            context = client_tls(authority.files("me"), "h2")
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.port, ssl=context, server_hostname="127.0.0.1"
            )
            writer.write(opening())
            (message,) = await heard(reader)
            writer.close()
            return message

    assert f"only {PROTOCOL} is spoken here" in problem([asyncio.run(main())]).detail


def test_older_tls_is_not_spoken(tmp_path, authority):
    old = client_tls(authority.files("me"), PROTOCOL)
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert isinstance(refused_over_tls(tmp_path, authority, old), Unavailable)


def test_files_that_hold_no_certificate_are_named(tmp_path, authority):
    files = authority.files("server")
    with pytest.raises(RopewalkError, match="no file"):
        server_tls(type(files)(tmp_path / "nope", files.key, files.roots), PROTOCOL)
    (tmp_path / "empty").write_bytes(b"")
    for wrong in (
        type(files)(tmp_path / "empty", files.key, files.roots),
        type(files)(files.certificate, authority.files("other").key, files.roots),
        type(files)(files.certificate, files.key, tmp_path / "empty"),
    ):
        with pytest.raises(Invalid, match="PEM"):
            server_tls(wrong, PROTOCOL)


# Servers that misbehave, and somebody between.


def against(reply: Act, act: Callable[[LedgerClient], Awaitable[Any]], **options: Any) -> Any:
    """What a client makes of a server that replies like this."""

    async def main() -> Any:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reply(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        url = f"tcp://127.0.0.1:{port}"
        async with (
            asyncio.timeout(LIMIT_S),
            server,
            LedgerClient(url, "audit", retry_s=0, **options) as remote,
        ):
            return await act(remote)

    return asyncio.run(main())


async def asked_of(reader: asyncio.StreamReader) -> RemoteMessage:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return parse_message(unpack_parts(await reader.readexactly(size), 10_000))


async def agree(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    said = parse((await asked_of(reader)).parts[0])
    told = answer(NODE, said, Capabilities(("tcp",)), timestamp=NOON)
    writer.write(asking("opened", 0, told.advertisement.raw, told.agreed.raw))


async def append_one(remote: LedgerClient) -> Any:
    return await remote.submit(observed(1).raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xff\xff\xff",
        frame(b"x"),
        asking("opened", 0),
        asking("opened", 0, b"{}", b"{}"),
        asking("opened", 0, observed(1).raw, observed(2).raw),
        asking("problem", 0, b"{}"),
        asking("outcomes", 1),
    ],
)
def test_a_client_refuses_an_answer_that_is_none(raw):
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asked_of(reader)
        writer.write(raw)

    with pytest.raises(RopewalkError):
        against(reply, append_one)


def test_a_tampered_answer_is_refused_before_anything_is_sent():
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = parse((await asked_of(reader)).parts[0])
        told = answer(NODE, said, Capabilities(("tcp",)), timestamp=NOON)
        weaker = told.agreed.raw.replace(b'"compression":"zstd"', b'"compression":"none"')
        assert weaker != told.agreed.raw
        writer.write(asking("opened", 0, told.advertisement.raw, weaker))
        assert await reader.read() == b""  # the client says nothing more

    with pytest.raises(SigInvalid, match="not the one that was signed"):
        against(reply, append_one, compression=("zstd", "none"))


def test_an_option_stripped_by_somebody_between_is_seen():
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = parse((await asked_of(reader)).parts[0])
        payload: Any = {**said.value["payload"], "compression": ["none"]}
        weaker = build(
            ADA,
            domain=said.domain,
            event_class=said.event_class,
            event_type=said.event_type,
            payload=payload,
            timestamp=said.timestamp,
            correlation_id=said.correlation_id,
        )
        told = answer(NODE, weaker, Capabilities(("tcp",)), timestamp=NOON)
        writer.write(asking("opened", 0, told.advertisement.raw, told.agreed.raw))

    with pytest.raises(SigInvalid, match="does not follow"):
        against(reply, append_one, compression=("zstd", "none"))


@pytest.mark.parametrize(
    "raw",
    [
        asking("outcomes", 2, first=0),
        asking("outcomes", 1, first=1),
        asking("outcomes", 1, outcome_part(LedgerReceipt(bytes(32), 0, 0, bytes(32))), b"{}", first=0),
        asking("outcomes", 1, b"{}", first=0),
        asking("head", 1),
        asking("blocks", 1, height=0),
        frame(b"garbage"),
    ],
)
def test_answers_to_what_was_not_asked_are_refused(raw):
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await agree(reader, writer)
        await asked_of(reader)
        writer.write(raw)
        await reader.read()

    with pytest.raises(Invalid):
        against(reply, append_one)


def test_a_receipt_for_another_envelope_is_not_believed():
    other = outcome_part(LedgerReceipt(observed(2).id, 0, 0, bytes(32)))

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await agree(reader, writer)
        await asked_of(reader)
        writer.write(asking("outcomes", 1, other, first=0))
        await reader.read()

    with pytest.raises(Unverified, match="a receipt for"):
        against(reply, append_one)


def test_a_server_that_never_answers_is_not_waited_for_forever():
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await agree(reader, writer)
        await reader.read()

    with pytest.raises(Unavailable):
        against(reply, append_one, idle_s=0.3)


def test_lines_of_blocks_that_do_not_add_up_are_refused():
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await agree(reader, writer)
        await asked_of(reader)
        writer.write(asking("block", 1, b"x", height=5, first=0, lines=1) + asking("blocks", 1, height=6))
        await reader.read()

    async def act(remote: LedgerClient) -> Any:
        return await remote.read_blocks(0)

    with pytest.raises(Invalid, match="other blocks"):
        against(reply, act)


# Connections that are lost.


def test_what_has_no_answer_is_sent_again_in_order_and_stands_once(tmp_path):
    asked = [observed(i, event_class="Command", correlation_id=f"c-{i}") for i in range(600)]
    answered = [observed(i, event_class="Result", parent=each) for i, each in enumerate(asked)]
    raws = [each.raw for each in (*asked, *answered)]

    async def main() -> Any:
        async with served(tmp_path) as server:
            cuts = iter([20_000, 200_000, 400_000, 700_000])

            async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                """Carries bytes both ways, and breaks off after some."""
                there, here = await asyncio.open_connection("127.0.0.1", server.port)
                left = next(cuts, 1 << 30)

                async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                    nonlocal left
                    while left > 0 and (data := await source.read(4096)):
                        target.write(data)
                        await target.drain()
                        left -= len(data)

                both = [
                    asyncio.ensure_future(carry(reader, here)),
                    asyncio.ensure_future(carry(there, writer)),
                ]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)
                for each in (here, writer):
                    each.transport.abort()

            relay = await asyncio.start_server(between, "127.0.0.1", 0)
            port = relay.sockets[0].getsockname()[1]
            async with relay, LedgerClient(f"tcp://127.0.0.1:{port}", "audit", retry_s=LIMIT_S) as remote:
                outcomes = await remote.submit_many(raws)
                assert remote.connections > 2
            return outcomes

    outcomes = asyncio.run(main())
    assert all(isinstance(each, LedgerReceipt) for each in outcomes), [
        each for each in outcomes if not isinstance(each, LedgerReceipt)
    ][:3]
    places = [(each.height, each.index) for each in outcomes]
    assert places == sorted(places) and len(set(places)) == len(raws)
    assert verify_blocks(tmp_path, "audit", deep=True).ok


def test_a_connection_that_cannot_be_made_again_is_told_to_all_who_wait(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as server:
            remote = await LedgerClient(server.url, "audit", retry_s=0.1).__aenter__()
            await remote.submit(observed(1).raw)
        first, second = await remote.submit_many([observed(2).raw, observed(3).raw])
        assert isinstance(first, Unavailable) and isinstance(second, Unavailable)
        again = LedgerServer(tmp_path, lambda _channel: [NODE], port=server.port)
        async with again:  # it comes back, and the same client goes on
            assert (await remote.submit(observed(2).raw)).height == 1
        await remote.__aexit__(None, None, None)

    asyncio.run(main())
