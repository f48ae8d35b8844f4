"""What is answered to a plain request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class HtmlPage(NamedTuple):
    """An answer: its status, what is said about it, and itself."""

    status: int
    headers: Mapping[str, str]
    body: bytes
