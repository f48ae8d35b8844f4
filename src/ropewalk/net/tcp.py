"""Pipes over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from ropewalk.errors import Unavailable, Usage
from ropewalk.net.pipe import Accept
from ropewalk.net.refusals import listening, reason

__all__ = ["TcpListening", "TcpPipe", "connect_tcp", "serve_tcp"]

CHUNK_BYTES = 64 << 10
GOODBYE_S = 1.0  # how long closing waits for the other side


class TcpPipe:
    """One TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        host, port = (writer.get_extra_info("peername") or ("?", 0))[:2]
        self.name = f"tcp://{host}:{port}"

    async def receive(self) -> bytes:
        try:
            return await self._reader.read(CHUNK_BYTES)
        except OSError as error:
            raise Unavailable(f"{self.name}: {reason(error)}") from error

    async def send(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise Unavailable(f"{self.name}: {reason(error)}") from error

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), GOODBYE_S)


async def connect_tcp(host: str, port: int, *, timeout_s: float) -> TcpPipe:
    """Connect; Unavailable if nobody is there."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port, limit=CHUNK_BYTES)
    except TimeoutError as error:
        raise Unavailable(f"tcp://{host}:{port} does not answer within {timeout_s:g} s") from error
    except socket.gaierror as error:
        raise Unavailable(
            f"tcp://{host}:{port}: {error.strerror}", advice="Check the name of the host."
        ) from error
    except OSError as error:
        raise Unavailable(f"tcp://{host}:{port}: {reason(error)}") from error
    except UnicodeError as error:
        raise Usage(f"{host[:80]!r} is no name of a host", advice="Write tcp://HOST:PORT.") from error
    return TcpPipe(reader, writer)


class TcpListening:
    """A port that takes connections, and the tasks of those that came."""

    def __init__(self, server: asyncio.Server, tasks: set[asyncio.Task[None]]) -> None:
        self._server = server
        self._tasks = tasks
        self.port: int = server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def serve_tcp(accept: Accept, host: str, port: int) -> TcpListening:
    """Listen; `accept` owns each pipe until it returns, which must be without an exception."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        pipe = TcpPipe(reader, writer)
        try:
            await accept(pipe)
        except asyncio.CancelledError:
            pass  # we are closing; asyncio would report it as an error of the connection
        finally:
            await pipe.close()

    with listening(host, port):
        server = await asyncio.start_server(handle, host, port, limit=CHUNK_BYTES)
    return TcpListening(server, tasks)
