"""A last-write-wins register for every name, shared by peers that are mostly offline.

Messages arrive in any order, so "last" cannot mean "arrived last": it means the highest clock, and the id where two
clocks are equal. Every peer that has the same messages then shows the same values.

    python examples/gossip_register.py
"""

from __future__ import annotations

import os
from typing import Any

from ropewalk import SigningKey, gossip

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
        signer = SigningKey.generate("ed25519", os.urandom(32))
        self.log = gossip.open(topic, path, signer=signer, apply=self._apply, validate=SET)
        self.log.replay()  # what is on disk from before

    def _apply(self, id: str, _signature: gossip.GossipSignature, message: gossip.GossipMessage) -> None:
        name, write = message.payload["set"], (message.clock, id)
        if write > self._won.get(name, (0, "")):
            self._won[name] = write
            self.values[name] = message.payload["to"]

    def set(self, name: str, value: Any) -> None:
        self.log.append({"set": name, "to": value})


def main() -> None:
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


if __name__ == "__main__":
    main()
