"""Which addresses are on the public internet: an address from a peer must not lead into the network of the server."""

from __future__ import annotations

import ipaddress
from typing import Final

# Prefixes under which IPv6 networks reach IPv4 addresses: NAT64 (RFC 6052, RFC 8215) and IPv4-compatible ones.
TRANSLATED: Final = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))
# Special ranges that `is_global` of some Python versions lets pass: protocol assignments, 6to4 relays, documentation.
SPECIAL: Final = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")))


def is_public(address: str) -> bool:
    """Return whether an address is on the public internet: not loopback, private, link-local, multicast or reserved.

    >>> [is_public(each) for each in ("93.184.215.14", "127.0.0.1", "10.1.2.3", "169.254.169.254", "::ffff:10.0.0.1")]
    [True, False, False, False, False]
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is not None:
            return is_public(str(inner))
        if found.is_site_local or any(found in network for network in TRANSLATED):
            return False
    if any(found in network for network in SPECIAL):
        return False
    return found.is_global and not found.is_multicast and not found.is_reserved
