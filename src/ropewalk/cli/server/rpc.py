"""`gatosd rpc` and `gatosd messages-read`: the git logs for programs that talk through a pipe."""

from __future__ import annotations

import sys

from ropewalk.cli.common.command import command, emit_line
from ropewalk.cli.common.options import option, required
from ropewalk.cli.git.events import opened
from ropewalk.cli.git.messages import spelled
from ropewalk.gitlog.core.layout import MESSAGES


@command("rpc", 'echo \'{"id":1,"method":"shiplog.read","params":{"ns":"demo"}}\' | gatosd rpc')
def rpc() -> None:
    """Answer JSON requests on stdin, one a line, until it ends.

    A request is {"id","method","params"}; the answer is {"ok":true,"id","result"} or {"ok":false,"id","code","reason"}.
    Methods: shiplog.append, shiplog.read, shiplog.tail, shiplog.checkpoint.set, shiplog.checkpoint.get,
    messages.read, messages.publish.
    """
    from ropewalk.server.rpc import LINE_BYTES_MAX, Rpc

    with opened() as log:
        lines = iter(lambda: sys.stdin.buffer.readline(LINE_BYTES_MAX + 1), b"")
        for answer in Rpc(log).answer_all(lines):
            emit_line(answer)


@command("messages-read", "gatosd messages-read --topic jobs --limit 100")
@required("--topic", "TOPIC", "The topic.")
@option("--since-ulid", "ULID", "Only messages after this one.")
@option("--limit", "N", "How many at most (512 is the most).", type=int, default=128)
def messages_read(topic: str, since_ulid: str | None, limit: int) -> None:
    """Print the answer of `messages.read` (S1) as one JSON object."""
    from ropewalk.gitlog.core.reading import messages_answer

    with spelled(), opened() as log:
        page = log.read(topic, since_ulid, limit, layout=MESSAGES)
        emit_line(messages_answer(page, topic, None))
