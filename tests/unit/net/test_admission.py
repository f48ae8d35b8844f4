"""The limits on connections of all servers: who makes room for whom, and what happens without descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.waiting import LIMIT_S

from ropewalk.net.admission import Admission, ConnectionLimits, ConnectionSlot, connection_budget
from ropewalk.net.tcp import TcpPipe, serve_tcp


class Listener:
    """A server that counts, and what clients sent it. A client that sends a byte joins, one that sends two settles."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits, self.refused, self.port = limits, list[tuple[str, str]](), 0
        self.joined: list[bool] = []
        self.clients: list[Client] = []

    async def accept(self, pipe: TcpPipe) -> None:
        assert pipe.slot is not None
        while data := await pipe.receive():
            self.joined.append(pipe.slot.join())
            if len(data) > 1:
                pipe.slot.settle()
            await pipe.send(b"ok" if self.joined[-1] else b"no")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Listener]:
        note = lambda who, why: self.refused.append((who, why))  # noqa: E731
        listening = await serve_tcp(self.accept, "127.0.0.1", 0, limits=self.limits, refused=note)
        self.port = listening.port
        try:
            yield self
        finally:
            await listening.close()
            for client in self.clients:
                client.writer.close()
                with contextlib.suppress(OSError):
                    await client.writer.wait_closed()

    async def client(self, source: str = "127.0.0.1") -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))
        self.clients.append(Client(reader, writer))
        return self.clients[-1]


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def says(self, data: bytes) -> bytes:
        """Return the answer; nothing if the server has dropped this client."""
        with contextlib.suppress(OSError):
            self.writer.write(data)
            return await asyncio.wait_for(self.reader.read(2), LIMIT_S)
        return b""

    async def dropped(self) -> bool:
        with contextlib.suppress(OSError):
            return await asyncio.wait_for(self.reader.read(2), LIMIT_S) == b""
        return True


def run(limits: ConnectionLimits, act: Callable[[Listener], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Listener(limits).running() as server:
            await act(server)

    asyncio.run(main())


def test_newcomer_replaces_oldest_handshake():
    async def act(server: Listener) -> None:
        clients = [await server.client() for _ in range(4)]
        assert await clients[0].dropped()
        assert [await each.says(b"a") for each in clients[1:]] == [b"ok"] * 3
        assert "3 handshakes are in progress" in server.refused[0][1]

    run(ConnectionLimits(8, handshakes_max=3), act)


def test_busiest_address_makes_room():
    async def act(server: Listener) -> None:
        quiet = await server.client("127.0.0.2")
        crowd = [await server.client("127.0.0.3") for _ in range(8)]
        assert await quiet.says(b"a") == b"ok"
        assert await crowd[0].dropped()
        assert await crowd[-1].says(b"a") == b"ok"

    run(ConnectionLimits(16, handshakes_max=3), act)


def test_handshake_deadline_drops_silent_client():
    async def act(server: Listener) -> None:
        silent = await server.client()
        assert await silent.dropped()
        assert "within 0.3 s" in server.refused[0][1]

    run(ConnectionLimits(8, handshake_s=0.3), act)


def test_joined_client_has_no_deadline():
    joined_in_time = False

    async def act(server: Listener) -> None:
        nonlocal joined_in_time
        joined, silent = await server.client(), await server.client()
        joined_in_time = await joined.says(b"a") == b"ok"
        assert await silent.dropped()
        assert not joined_in_time or await joined.says(b"a") == b"ok"

    for handshake_s in (0.5, 5.0, 30.0):  # a loaded machine may not have joined before a short deadline
        run(ConnectionLimits(8, handshake_s=handshake_s), act)
        if joined_in_time:
            break
    assert joined_in_time


def test_quiet_client_makes_room_settled_one_stays():
    async def act(server: Listener) -> None:
        settled, quiet, third = [await server.client() for _ in range(3)]
        assert await settled.says(b"aa") == b"ok"
        assert await quiet.says(b"a") == b"ok"
        assert await third.says(b"aa") == b"ok"
        assert await quiet.dropped()
        late = await server.client()
        assert await late.says(b"aa") == b"no"
        assert await settled.says(b"a") == b"ok"

    run(ConnectionLimits(2), act)


def test_one_address_cannot_take_all_places():
    async def act(server: Listener) -> None:
        greedy = [await server.client("127.0.0.2") for _ in range(3)]
        assert [await each.says(b"aa") for each in greedy] == [b"ok", b"ok", b"no"]
        other = await server.client("127.0.0.3")
        assert await other.says(b"aa") == b"ok"
        greedy[0].writer.close()
        await greedy[0].writer.wait_closed()
        again = await server.client("127.0.0.2")
        assert await again.says(b"aa") == b"ok"  # a place that was given back is free

    run(ConnectionLimits(4, address_max=2), act)


def test_slot_counts_once_however_it_ends():
    async def main() -> None:
        admission = Admission(ConnectionLimits(2))
        one, other = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, one)
        slot: ConnectionSlot = admission.enter(transport)
        assert (admission.handshakes, len(admission)) == (1, 0)
        assert slot.join() and slot.join()
        assert (admission.handshakes, len(admission)) == (0, 1)
        slot.leave()
        slot.leave()
        assert (admission.handshakes, len(admission), slot.join()) == (0, 0, False)
        transport.close()
        other.close()

    asyncio.run(main())


def test_budget_stays_below_the_file_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A worker that ran other tests may hold any number of files; a limit just above them is always too low.
    low = len(list(Path("/dev/fd").iterdir())) + 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
        assert connection_budget(10) == 10
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > low  # raised as far as needed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


LIMITED = """
import asyncio, resource, socket
from ropewalk.net.admission import ConnectionLimits, connection_budget
from ropewalk.net.tcp import serve_tcp

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
assert 1 <= connection_budget(4096) <= 64

async def main():
    refused = []
    async def accept(pipe):
        pipe.slot.join()
        while await pipe.receive():
            await pipe.send(b"ok")
    listening = await serve_tcp(
        accept, "127.0.0.1", 0, limits=ConnectionLimits(8), refused=lambda who, why: refused.append(why)
    )
    held = []
    try:
        while True:
            held.append(socket.socket())
    except OSError:
        pass
    held.pop().close()
    with socket.socket() as client:  # takes the last descriptor, so that nothing can be accepted
        client.setblocking(False)
        try:
            client.connect(("127.0.0.1", listening.port))
        except BlockingIOError:
            pass
        while not refused:
            await asyncio.sleep(0.01)
        for each in held:
            each.close()
        client.setblocking(True)
        await asyncio.to_thread(client.sendall, b"x")
        assert await asyncio.to_thread(client.recv, 2) == b"ok"
    await listening.close()
    print(len(refused), refused[0])

asyncio.run(main())
"""


def test_no_descriptors_is_one_line_not_tracebacks():
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 ") and "Too many open files" in done.stdout


@pytest.mark.parametrize(("places", "share"), [(64, 32), (4_096, 2_048), (20, 16), (3, 3)])
def test_address_share_of_places(places: int, share: int):
    assert ConnectionLimits(places).per_address == share
    assert ConnectionLimits(places, address_max=2).per_address == 2
