"""Addresses of our own networks are not public, however they are written."""

from __future__ import annotations

import pytest

from ropewalk.net.public_address import is_public


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "169.254.169.254", "0.0.0.0", "224.0.0.1"),
        *("::1", "::ffff:127.0.0.1", "fd00::1", "fe80::1", "fe80::1%eth0", "ff02::1"),
    ],
)
def test_private_addresses_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "fec0::1", "::7f00:1", "2002:7f00:1::"]
)
def test_translated_addresses_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["192.0.0.8", "192.88.99.1", "3fff::1", "100.64.0.1", "198.18.0.1", "2001:db8::1", "fd00:ec2::254"],
)
def test_special_addresses_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["198.41.0.4", "2001:503:ba3e::2:30", "::ffff:198.41.0.4"])
def test_addresses_of_the_internet_are_public(address):
    assert is_public(address)
