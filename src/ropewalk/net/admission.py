"""Limit the connections of a server, so that idle clients cannot shut out others or exhaust memory and descriptors.

A connection starts in its handshake and has a deadline for that. It then joins: it holds one of the server's places.
While it has said nothing, a newcomer may replace it. Once it has settled, only its own server ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final

HANDSHAKE_S_MAX: Final = 10.0  # from accept until the transport's and the protocol's handshakes are done
HANDSHAKES_MAX: Final = (
    64  # in progress; one over TLS takes about 0.7 MiB before the client has said anything
)
ADDRESS_SHARE: Final = 2  # one address gets at most one place in so many
ADDRESS_MIN: Final = 16  # but never fewer than so many: small servers often have one client machine
RESERVED_FILES_MAX: Final = 448  # for files, and for what asyncio accepts (100 a turn) before we see it
SHED_QUIET_S: Final = 60.0  # how long nothing more is said of it
SHED_MAX: Final = 32  # handshakes dropped at once when the process has no descriptor left
ACCEPT_FAILED: Final = "socket.accept() out of system resource"  # as asyncio calls it
ACCEPT_AGAIN: Final = "_start_serving"  # what it calls a second later


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one server. Without `address_max`, one address gets half of the places."""

    connections_max: int
    handshakes_max: int = HANDSHAKES_MAX
    handshake_s: float = HANDSHAKE_S_MAX
    address_max: int | None = None

    @property
    def per_address(self) -> int:
        """How many connections one address may hold.

        >>> ConnectionLimits(64).per_address, ConnectionLimits(4).per_address
        (32, 4)
        """
        if self.address_max is not None:
            return self.address_max
        return min(self.connections_max, max(ADDRESS_MIN, self.connections_max // ADDRESS_SHARE))


class ConnectionSlot:
    """One connection, as its server's admission counts it."""

    def __init__(self, admission: Admission, transport: asyncio.BaseTransport, handshake_s: float) -> None:
        peer = transport.get_extra_info("peername")
        self.address = address_group(peer)
        self.name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "?"
        self.handshake_s = handshake_s
        self.refusal = "the connection was dropped"  # why `join` returned False
        self._admission = admission
        self._transport = transport
        loop = asyncio.get_running_loop()
        self._deadline: asyncio.TimerHandle | None = loop.call_later(handshake_s, admission.expire, self)

    @property
    def counted(self) -> bool:
        """Whether it has its place, or is in its handshake; False once it was dropped."""
        return self._admission.counts(self)

    def join(self) -> bool:
        """Take a place: the handshake is done. False if all places are taken by connections that have settled."""
        joined = self._admission.join(self)
        if joined:
            self._stop_timer()
        return joined

    def settle(self) -> None:
        """Keep the place: the client has said something that makes sense."""
        self._admission.settle(self)

    def leave(self) -> None:
        """Give the place back; doing so twice is no error."""
        self._stop_timer()
        self._admission.forget(self)

    def abort(self) -> None:
        """Drop the connection."""
        self.leave()
        assert isinstance(self._transport, asyncio.Transport)
        self._transport.abort()

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Admission:
    """Count the connections of one server. `refused` gets peer and reason of each drop; it limits its own output."""

    def __init__(
        self, limits: ConnectionLimits, refused: Callable[[str, str], None] = lambda _who, _why: None
    ) -> None:
        self.limits = limits
        self.budget = connection_budget(limits.connections_max + limits.handshakes_max)
        self._refused = refused
        self._restore: Callable[[], None] = lambda: None
        self._shed_again_at = 0.0
        self._closed = False
        self._opening: dict[ConnectionSlot, None] = {}  # in the order in which they came
        self._quiet: dict[ConnectionSlot, None] = {}
        self._settled: dict[ConnectionSlot, None] = {}
        self._places: Counter[str] = Counter()  # held, by address

    def __len__(self) -> int:
        """Return how many connections hold a place."""
        return len(self._quiet) + len(self._settled)

    @property
    def handshakes(self) -> int:
        """How many handshakes are in progress."""
        return len(self._opening)

    def enter(self, transport: asyncio.BaseTransport) -> ConnectionSlot:
        """Count a connection that was just accepted. Where there is no room, the oldest silent one is dropped."""
        slot = ConnectionSlot(self, transport, self.limits.handshake_s)
        if len(self._opening) >= self.limits.handshakes_max:
            self._replace(self._opening, f"{len(self._opening)} handshakes are in progress")
        elif len(self._opening) + len(self) >= self.budget:
            why = f"{self.budget} connections are open, which is all that the limit on open files allows"
            if not self._replace(self._opening, why) and not self._replace(self._quiet, why):
                self._refused(slot.name, why)
                slot.abort()
                return slot
        self._opening[slot] = None
        return slot

    def join(self, slot: ConnectionSlot) -> bool:
        """Move a connection from its handshake to a place; see `ConnectionSlot.join`."""
        if slot not in self._opening:
            return self.counts(slot)
        limits = self.limits
        if self._places[slot.address] >= limits.per_address < limits.connections_max:
            slot.refusal = f"{limits.per_address} connections of this address are open already"
            if not self._drop((each for each in self._quiet if each.address == slot.address), slot.refusal):
                return False
        elif len(self) >= limits.connections_max:
            slot.refusal = f"{limits.connections_max} connections are open already"
            if not self._replace(self._quiet, slot.refusal):
                return False
        del self._opening[slot]
        self._quiet[slot] = None
        self._places[slot.address] += 1
        return True

    def settle(self, slot: ConnectionSlot) -> None:
        """Keep a connection that has joined; see `ConnectionSlot.settle`."""
        if slot in self._quiet:
            del self._quiet[slot]
            self._settled[slot] = None

    def expire(self, slot: ConnectionSlot) -> None:
        """Drop a connection whose handshake took too long."""
        if slot in self._opening:
            self._drop([slot], f"the handshake was not done within {self.limits.handshake_s:g} s")

    def counts(self, slot: ConnectionSlot) -> bool:
        """Return whether a connection is counted; see `ConnectionSlot.counted`."""
        return slot in self._opening or slot in self._quiet or slot in self._settled

    def forget(self, slot: ConnectionSlot) -> None:
        """Count a connection no more."""
        self._opening.pop(slot, None)
        for slots in (self._quiet, self._settled):
            if slot in slots:
                del slots[slot]
                self._places[slot.address] -= 1
                if not self._places[slot.address]:
                    del self._places[slot.address]

    def open(self) -> None:
        """Report a lack of descriptors in one line, and ease it by dropping handshakes.

        asyncio then accepts nothing for a second, but logs up to a hundred tracebacks each time (Python 3.11).
        """
        loop = asyncio.get_running_loop()
        before = loop.get_exception_handler()

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            message = str(context.get("message"))
            if message == ACCEPT_FAILED:
                self._shed(str(context.get("exception")))
            elif self._closed and ACCEPT_AGAIN in message:
                pass  # asyncio wants to accept again at a socket that was closed meanwhile
            elif before is not None:
                before(loop, context)
            else:
                loop.default_exception_handler(context)

        loop.set_exception_handler(handle)
        self._restore = lambda: loop.set_exception_handler(before)

    def close(self) -> None:
        """Drop the connections that are still in their handshake, and leave the event loop as it was."""
        self._closed = True
        for slot in list(self._opening):
            slot.abort()
        if not self._shed_again_at:  # otherwise asyncio may still be about to accept again
            self._restore()

    def _shed(self, why: str) -> None:
        for slot in list(self._opening)[:SHED_MAX]:
            slot.abort()
        now = asyncio.get_running_loop().time()
        if now >= self._shed_again_at:
            self._shed_again_at = now + SHED_QUIET_S
            self._refused("new connections", f"{why}; trying again every second")

    def _replace(self, slots: dict[ConnectionSlot, None], why: str) -> bool:
        """Drop the oldest connection of the address that holds most of these; False if there is none."""
        if not slots:
            return False
        busiest = Counter(each.address for each in slots).most_common(1)[0][0]
        return self._drop((each for each in slots if each.address == busiest), why)

    def _drop(self, slots: Iterable[ConnectionSlot], why: str) -> bool:
        for slot in slots:
            self._refused(slot.name, f"it has said nothing yet, and {why}")
            slot.abort()
            return True
        return False


def address_group(peer: Any) -> str:
    """Return what counts as one address: an IPv4 address, or the network of 64 bits that an IPv6 client owns.

    >>> address_group(("192.0.2.7", 5000)), address_group(("2001:db8::1:2:3", 5000, 0, 0))
    ('192.0.2.7', '2001:db8::/64')
    """
    host = str(peer[0]) if isinstance(peer, tuple) and peer else "?"
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"


def connection_budget(wanted: int) -> int:
    """Raise the soft limit on open files as far as `wanted` connections need; return how many may be open."""
    used = sum(1 for _ in Path("/dev/fd").iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + used + RESERVED_FILES_MAX
    if soft != resource.RLIM_INFINITY and soft < needed:
        more = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than their hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
            soft = more
    if soft == resource.RLIM_INFINITY:
        return wanted
    reserved = min(RESERVED_FILES_MAX, soft // 2)
    return max(1, min(wanted, soft - used - reserved))
