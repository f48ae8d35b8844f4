"""Calling the ledger commands in this process, as other software calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Answer", "Ropewalk", "make"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Ropewalk = Callable[..., Answer]


def make(ropewalk: Ropewalk, name: str = "one.json", *more: str, kind: str = "Observation") -> Path:
    done = ropewalk(
        *("ledger", "envelope", "--channel", "audit", "--domain", "ops", "--class", kind, "--type", "t"),
        *("--payload", "body.json", "--key", "ada", "-o", name, *more),
    )
    assert done.code == 0, done
    return Path(name)
