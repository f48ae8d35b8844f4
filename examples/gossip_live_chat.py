"""Chat between terminals, without a server in the middle: every terminal holds the whole conversation.

    python examples/gossip_live_chat.py ada --listen 8080
    python examples/gossip_live_chat.py bob --connect ws://127.0.0.1:8080

Each line you type is signed and reaches everyone who is connected, directly or through others. Who connects later, or
again, gets what was said meanwhile. The npm package @canvas-js/gossiplog can be any of the peers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
from contextlib import AsyncExitStack, suppress
from typing import Any

from ropewalk import gossip

ROOM = "com.example.live-chat"
LINE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "text": {"type": "string", "maxLength": 1000},
    },
    "required": ["name", "text"],
    "additionalProperties": False,
}


async def show(log: gossip.AsyncLog[Any, Any]) -> None:
    async for _, signed in log.follow():
        said = signed.message.payload
        line = f"{said['name']}: {said['text']}"
        print("".join(char if char.isprintable() else "?" for char in line), flush=True)


async def write(log: gossip.AsyncLog[Any, Any], name: str) -> None:
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line.strip())

    threading.Thread(target=read, daemon=True).start()
    while True:
        if text := await lines.get():
            await log.append({"name": name, "text": text})


async def chat(name: str, listen: int | None, connect: list[str], path: str | None) -> None:
    async with AsyncExitStack() as stack:
        opened = gossip.open(ROOM, path, signer=gossip.Ed25519Signer(), validate=LINE)
        log = await stack.enter_async_context(gossip.AsyncLog(opened))
        if listen is not None:
            server = await stack.enter_async_context(log.serve(port=listen))
            print(f"others join with --connect {server.url}", flush=True)
        for url in connect:
            await stack.enter_async_context(log.connect(url))
        await asyncio.gather(show(log), write(log, name))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument(
        "--listen", type=int, metavar="PORT", help="accept others on this port; 0 takes a free one"
    )
    parser.add_argument(
        "--connect", action="append", default=[], metavar="URL", help="stay connected to a peer"
    )
    parser.add_argument("--path", metavar="DIR", help="keep the conversation here; default: in memory")
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(chat(options.name, options.listen, options.connect, options.path))


if __name__ == "__main__":
    main()
