"""Clients that break the protocol on purpose, over each transport: frames over a pipe, and calls of gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from ropewalk.errors import RopewalkError
from ropewalk.ledger.remote.dialing import parse_address
from ropewalk.ledger.remote.messages import PROTOCOL, RemoteMessage
from ropewalk.ledger.remote.negotiate import MESSAGE_BYTES, Capabilities, advertise
from ropewalk.ledger.remote.proto import ledger_pb2 as pb
from ropewalk.ledger.remote.transports.grpc_messages import METHODS, SERVICE
from ropewalk.net.frames import FrameDecoder, frame
from ropewalk.net.pipe import Pipe
from ropewalk.net.quic.client import connect_quic
from ropewalk.net.tcp import connect_tcp
from ropewalk.net.tls import TlsFiles, client_tls
from tests.torture.scenes.house import Server
from tests.torture.scenes.peer import KEY, framed
from tests.waiting import LIMIT_S

__all__ = ["misbehave"]

READS = 4  # calls at once that one certificate may have
Act = Callable[[], Awaitable[None]]
Calls = Callable[..., Any]


def misbehave(server: Server, files: TlsFiles | None, channel: str, garbage: list[bytes]) -> dict[str, bool]:
    """Do everything that is wrong, at once; returns by its name whether the server ended it."""
    grpc_only = server.url.startswith("grpc:")
    acts = _calls(server, files, channel, garbage) if grpc_only else _frames(server, files, channel, garbage)

    async def main() -> dict[str, bool]:
        ended = await asyncio.gather(*map(_ends, acts.values()))
        return dict(zip(acts, ended, strict=True))

    return asyncio.run(main())


async def _ends(act: Act) -> bool:
    try:
        async with asyncio.timeout(LIMIT_S):
            await act()
    except TimeoutError:
        return False
    except (RopewalkError, OSError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    return True


async def _has_given_up(server: Server) -> None:
    """Wait until the server has noticed a client that reads nothing."""
    while "has read nothing" not in server.journal.read_text():
        await asyncio.sleep(0.05)


# --- frames over a pipe ------------------------------------------------------------------------------------------


def _frames(server: Server, files: TlsFiles | None, channel: str, garbage: list[bytes]) -> dict[str, Act]:
    async def say(raw: bytes, opens: str | None = channel) -> None:
        async with _pipe(server.url, files, opens) as pipe:
            await pipe.send(raw)
            while await pipe.receive():
                pass

    async def read_nothing() -> None:
        """Ask for all blocks again and again, far more than fits into any buffer."""
        async with _pipe(server.url, files, channel) as pipe:
            asked = b"".join(
                framed(RemoteMessage("blocks", number, {"from": 0})) for number in range(1, 2_000)
            )
            sending = asyncio.create_task(pipe.send(asked))
            await _has_given_up(server)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            while await pipe.receive():
                pass

    return {
        "silent": partial(say, b"", None),
        "garbage before it opens": partial(say, garbage[0], None),
        "garbage in frames": partial(say, b"".join(map(frame, garbage))),
        "an endless frame": partial(say, b"\xff\xff\xff\xff" + garbage[0]),
        "half a frame": partial(say, framed(RemoteMessage("head", 1, {}))[:-3]),
        "answers nobody asked for": partial(say, framed(RemoteMessage("outcomes", 1, {"first": 0}))),
        "reads nothing": read_nothing,
    }


@contextlib.asynccontextmanager
async def _pipe(url: str, files: TlsFiles | None, channel: str | None) -> AsyncIterator[Pipe]:
    """A pipe to a server; with a channel, a session is open on it."""
    scheme, host, port = parse_address(url)
    async with contextlib.AsyncExitStack() as stack:
        pipe: Pipe
        if scheme == "quic":
            assert files is not None
            link, close = await connect_quic(host, port, files, PROTOCOL, timeout_s=LIMIT_S)
            stack.push_async_callback(close)
            pipe = link.open_stream()
        else:
            tls = client_tls(files, PROTOCOL) if files is not None else None
            pipe = await connect_tcp(host, port, timeout_s=LIMIT_S, tls=tls)
            stack.push_async_callback(pipe.close)
        if channel is not None:
            await pipe.send(framed(RemoteMessage("open", 0, {"channel": channel}, (_advertised(scheme),))))
            cutter, said = FrameDecoder(MESSAGE_BYTES), list[bytes]()
            while not said:
                said = cutter.receive(await pipe.receive())
        yield pipe


def _advertised(scheme: str) -> bytes:
    asked = advertise(KEY, Capabilities((scheme,)), timestamp="2024-11-01T12:00:00Z", correlation_id="peer")
    return asked.raw


# --- calls of gRPC -------------------------------------------------------------------------------------------------


def _calls(server: Server, files: TlsFiles | None, channel: str, garbage: list[bytes]) -> dict[str, Act]:
    assert files is not None
    _, host, port = parse_address(server.url)
    credentials = grpc.ssl_channel_credentials(
        files.roots.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    session = pb.Session(channel=channel)

    async def say(raw: bytes) -> None:
        pipe = await connect_tcp(host, port, timeout_s=LIMIT_S, tls=client_tls(files, "h2"))
        await pipe.send(raw)
        while await pipe.receive():
            pass
        await pipe.close()

    @contextlib.asynccontextmanager
    async def method(name: str) -> AsyncIterator[Calls]:
        """A method of the service that takes any bytes, of any size."""
        options = (("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
        ((_, asks, answers, _, _),) = [each for each in METHODS if each[0] == name]
        async with grpc.aio.secure_channel(f"{host}:{port}", credentials, options=options) as made:
            kinds = {
                (False, False): made.unary_unary,
                (False, True): made.unary_stream,
                (True, True): made.stream_stream,
            }
            yield kinds[asks, answers](f"/{SERVICE}/{name}")

    async def ask(name: str, raw: bytes) -> None:
        async with method(name) as call:
            await call(raw)

    async def append(*raws: bytes) -> None:
        async with method("Append") as call:
            appending = call()
            for raw in raws:
                await appending.write(raw)
            async for _ in appending:
                pass

    async def read_nothing() -> None:
        """Read all blocks, which are more than fits into any buffer, in as many calls as one certificate may have."""
        async with method("Read") as call:
            reading = [call(pb.ReadRequest(session=session).SerializeToString()) for _ in range(READS)]
            await _has_given_up(server)
            for each in reading:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    async for _ in each:
                        pass

    unknown = pb.HeadRequest(session=pb.Session(id=garbage[0][:16])).SerializeToString()
    opening = pb.NegotiateRequest(channel=channel, advertisement=garbage[0]).SerializeToString()
    good = pb.AppendRequest(session=session).SerializeToString()
    return {
        "silent": partial(say, b""),
        "garbage before it opens": partial(say, garbage[0]),
        "garbage as an advertisement": partial(ask, "Negotiate", opening),
        "garbage in messages": partial(append, good, *garbage),
        "an endless message": partial(ask, "Head", bytes(8 << 20)),
        "a session nobody opened": partial(ask, "Head", unknown),
        "reads nothing": read_nothing,
    }
