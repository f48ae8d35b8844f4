"""Addresses that peers announce, and which of them an operator allows this peer to connect to."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ropewalk.errors import Invalid, Usage
from ropewalk.gossip.sync import wire

ADDRESS_CHARS_MAX = 200
ANNOUNCED_MAX = 4  # by one peer, of itself
LEARNED_MAX = 64  # kept, and told in one exchange
_URL = re.compile(r"wss?://(?:([a-z0-9._-]+)|\[([0-9a-f:.]+)\]):([0-9]{1,5})")
Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Pattern:
    """A host name, `*.` and a host name, or a network, each with a port.

    >>> [Pattern.parse("*.example.org:7447").covers(host, 7447) for host in ("a.example.org", "example.org", "1.2.3.4")]
    [True, False, False]
    >>> Pattern.parse("10.0.0.0/8:7447").covers("10.1.2.3", 7447)
    True
    """

    name: str
    network: IPv4Network | IPv6Network | None
    port: int

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Read a pattern, as `--discover` takes it."""
        host, _, port = text.lower().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536:
            raise _bad_pattern(text)
        try:
            return cls("", ip_network(host), int(port))
        except ValueError:
            name = host.removeprefix("*.")
            if not name or set(name) & set("*:/ ") or "/" in host:
                raise _bad_pattern(text) from None
            return cls(host, None, int(port))

    def covers(self, host: str, port: int) -> bool:
        """Return whether an announced host and port match."""
        address = _address(host)
        if port != self.port or (address is None) != (self.network is None):
            return False
        if address is not None:
            return address in (self.network or ())
        return host.endswith(self.name[1:]) if self.name.startswith("*.") else host == self.name


def _bad_pattern(text: str) -> Usage:
    return Usage(
        f"a pattern must be HOST:PORT or NETWORK:PORT, got {text!r:.80}",
        advice="For example '*.example.org:7447', '203.0.113.0/24:7447' or '[2001:db8::/32]:7447'.",
    )


def _address(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def place_of(url: str) -> tuple[str, int]:
    """Return host and port of an announced address; raise Invalid unless it is `ws[s]://HOST:PORT` and nothing else.

    >>> place_of("wss://A.example.org:7447")
    ('a.example.org', 7447)
    """
    found = _URL.fullmatch(url.lower()) if len(url) <= ADDRESS_CHARS_MAX else None
    if found is not None and 0 < int(found[3]) < 65536:
        name, inside, port = found.groups()
        if name or isinstance(_address(inside), IPv6Address):  # anything else in brackets is no URL
            return name or inside, int(port)
    raise Invalid(f"an announced address must be ws://HOST:PORT or wss://HOST:PORT, got {url!r:.80}")


def _spelled(url: str) -> str:
    """Return an announced address in its one spelling, so that no peer takes several places with one address."""
    host, port = place_of(url)
    address = _address(host)
    host = host if address is None else str(address)
    return f"{url.lower().partition(':')[0]}://{f'[{host}]' if ':' in host else host}:{port}"


class AddressBook:
    """What peers announced. Nothing is connected to unless a pattern allows it; without patterns, nothing ever is."""

    def __init__(self, announced: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        try:
            self.announced = tuple(dict.fromkeys(map(_spelled, announced)))
        except Invalid as error:
            raise Usage(
                error.detail, advice="Give the address under which others reach this peer."
            ) from error
        self._patterns = tuple(map(Pattern.parse, patterns))
        if len(self.announced) > ANNOUNCED_MAX:
            raise Usage(f"a peer announces at most {ANNOUNCED_MAX} addresses, got {len(self.announced)}")
        self._present: dict[Hashable, tuple[str, ...]] = {}  # connected peers, with what each announced
        self._learned: dict[str, bool] = {}  # oldest first; whether a pattern allows it

    @property
    def is_used(self) -> bool:
        """Return whether the operator announces or allows anything: if not, peers notice nothing of discovery."""
        return bool(self.announced or self._patterns)

    def told_to(self, peer: Hashable) -> bytes:
        """Return an encoded exchange: our own addresses, and those of the other peers that are connected now."""
        others = [url for each, urls in self._present.items() if each != peer for url in urls]
        return wire.encode_addresses(self.announced, list(dict.fromkeys(others))[:LEARNED_MAX])

    def hear(self, peer: Hashable, raw: bytes) -> None:
        """Take a peer's exchange; raise if it is malformed or too much."""
        own, others = wire.decode_addresses(raw, ANNOUNCED_MAX, LEARNED_MAX)
        urls = [_spelled(url) for url in (*own, *others)]
        self._present[peer] = tuple(urls[: len(own)])
        for url in urls:
            self._learn(url)

    def forget(self, peer: Hashable) -> None:
        """Note that a peer is gone: its addresses are not passed on any more."""
        self._present.pop(peer, None)

    def drop(self, url: str) -> None:
        """Forget an address that did not answer."""
        self._learned.pop(url, None)

    def learned(self) -> dict[str, bool]:
        """Return the learned addresses, and whether a pattern allows each."""
        return dict(self._learned)

    def wanted(self, connected: Collection[str]) -> Iterator[str]:
        """Yield the allowed addresses of peers that are not connected."""
        present = {url for urls in self._present.values() for url in urls}
        for url, allowed in list(self._learned.items()):
            if allowed and url not in present and url not in connected:
                yield url

    def permits(self, address: Address, port: int) -> bool:
        """Return whether a connection may go to an address that is not public: a pattern must name its network."""
        return any(each.network is not None and each.covers(str(address), port) for each in self._patterns)

    def _learn(self, url: str) -> None:
        if url in self._learned or url in self.announced:
            return
        host, port = place_of(url)
        allowed = any(pattern.covers(host, port) for pattern in self._patterns)
        if len(self._learned) >= LEARNED_MAX:
            # The oldest that is not allowed, so that junk does not displace what is of use.
            oldest = min(self._learned, key=lambda each: self._learned[each])
            if self._learned[oldest] and not allowed:
                return
            self.drop(oldest)
        self._learned[url] = allowed
