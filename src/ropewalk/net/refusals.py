"""What a network refuses, in words for the person who must clear it."""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from importlib.util import find_spec
from socket import gaierror

from websockets.exceptions import InvalidHandshake, InvalidURI

from ropewalk.errors import Unavailable, Usage


@contextlib.contextmanager
def connecting(url: str, timeout_s: float) -> Iterator[None]:
    """Translate errors of opening a WebSocket: Unavailable if nothing answers, Usage if the address is malformed."""
    try:
        yield
    except ssl.SSLError as error:  # a certificate error is also a ValueError
        raise Unavailable(f"{url}: {reason(error)}") from error
    except (InvalidURI, ValueError) as error:  # ValueError: a port that is no number, or no port
        raise Usage(f"{url} is no WebSocket address", advice="Write ws://HOST:PORT.") from error
    except TimeoutError as error:
        raise Unavailable(f"{url} does not answer within {timeout_s:g} s") from error
    except InvalidHandshake as error:
        raise Unavailable(f"{url} is no WebSocket: {error}") from error
    except gaierror as error:
        raise Unavailable(f"{url}: {error.strerror}", advice="Check the name of the host.") from error
    except (OSError, EOFError) as error:
        raise Unavailable(f"{url}: {reason(error)}") from error


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    """Raise Unavailable if a port cannot be opened within."""
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {reason(error)}",
            advice="Choose another address or port; port 0 takes a free one.",
        ) from error


def need_packages(extra: str, *names: str) -> None:
    """Raise with the install line unless the packages of an extra are there."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise Unavailable(
            f"the extra {extra} is not installed: {', '.join(missing)} missing",
            advice=f'Install it: pip install ".[{extra}]" (in a checkout of ropewalk)',
        )


def reason(error: BaseException) -> str:
    """Return why the network refused, in the words of the system; asyncio's own are for programmers.

    >>> reason(ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"))
    'Connection refused'
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):  # its numbers are not those of the system
        return f"TLS: {(error.reason or 'broken off').replace('_', ' ').lower()}"
    number = getattr(error, "errno", None)
    return os.strerror(number) if number is not None and number > 0 else str(error)
