"""A last-write-wins register for every name, shared by peers that are mostly offline.

Messages arrive in any order, so "last" cannot mean "arrived last": it means the highest clock, and the id where two
clocks are equal. Every peer that has the same messages then shows the same values.

    python examples/gossip_register.py                                     two peers in one process
    python examples/gossip_register.py --listen 8080                       peers in several processes:
    python examples/gossip_register.py --connect ws://127.0.0.1:8080       type NAME=VALUE; all values are printed
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from contextlib import AsyncExitStack, suppress
from typing import Any

from ropewalk import gossip

SET = {
    "type": "object",
    "properties": {"set": {"type": "string"}, "to": {}},
    "required": ["set", "to"],
    "additionalProperties": False,
}


class Register:
    """Values by name, kept up to date by `apply`."""

    def __init__(self, topic: str, path: str | None = None) -> None:
        self.values: dict[str, Any] = {}
        self._won: dict[str, tuple[int, str]] = {}
        self.log = gossip.open(
            topic, path, signer=gossip.Ed25519Signer(), apply=self._apply, validate=SET, replay=True
        )

    def _apply(self, id: str, _signature: gossip.GossipSignature, message: gossip.GossipMessage) -> None:
        name, write = message.payload["set"], (message.clock, id)
        if write > self._won.get(name, (0, "")):
            self._won[name] = write
            self.values[name] = message.payload["to"]

    def set(self, name: str, value: Any) -> None:
        self.log.append({"set": name, "to": value})


def demo() -> None:
    ada, bob = Register("com.example.register"), Register("com.example.register")
    ada.set("colour", "red")
    gossip.sync_both(ada.log, bob.log)
    print("both start with    ", ada.values)

    ada.set("colour", "green")  # now they are apart
    bob.set("colour", "blue")
    bob.set("colour", "teal")  # bob's second write has the higher clock
    bob.set("size", 7)
    print("apart, ada has     ", ada.values)
    print("apart, bob has     ", bob.values)

    gossip.sync_both(ada.log, bob.log)
    assert ada.values == bob.values
    print("together again     ", dict(sorted(ada.values.items())))


async def share(listen: int | None, connect: list[str]) -> None:
    """Set what stdin says, and print all values after each change, made here or by a peer."""
    register = Register("com.example.register")

    def read() -> None:
        for line in sys.stdin:
            name, equals, value = line.strip().partition("=")
            if equals:
                register.set(name, value)

    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(gossip.AsyncLog(register.log))
        if listen is not None:
            server = await stack.enter_async_context(log.serve(port=listen))
            print(f"others join with --connect {server.url}", flush=True)
        for url in connect:
            await stack.enter_async_context(log.connect(url))
        threading.Thread(target=read, daemon=True).start()
        async for _ in log.follow():
            print(json.dumps(register.values, sort_keys=True), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--listen", type=int, metavar="PORT", help="accept peers on this port; 0 takes a free one"
    )
    parser.add_argument(
        "--connect", action="append", default=[], metavar="URL", help="stay connected to a peer"
    )
    options = parser.parse_args()
    if options.listen is None and not options.connect:
        demo()
        return
    with suppress(KeyboardInterrupt):
        asyncio.run(share(options.listen, options.connect))


if __name__ == "__main__":
    main()
