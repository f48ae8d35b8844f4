"""The catalogue of all parsers, read by the tests and by the long fuzz run."""

from __future__ import annotations

from tests.fuzz import differential, gitlog, gossip, kernel, ledger, mailbox, pipeline, remote, server, stream
from tests.fuzz.offering import Parser, offer

__all__ = ["PARSERS", "Parser", "offer"]

PARSERS = (
    *kernel.PARSERS,
    *gitlog.PARSERS,
    *gossip.PARSERS,
    *ledger.PARSERS,
    *remote.PARSERS,
    *mailbox.PARSERS,
    *stream.PARSERS,
    *pipeline.PARSERS,
    *server.PARSERS,
    *differential.PARSERS,
)
