"""A small chat: three people write in the same room, partly offline, and see the same conversation in the end.

Only members may write. A laptop that holds no member key gets a session: the member signs once, and a temporary key
may speak for her up to a clock.

    python examples/gossip_chat.py
"""

from __future__ import annotations

from ropewalk import SigningKey, gossip

ROOM = "com.example.chat#harbour"
NAMES = ("ada", "bob", "cleo")
KEYS = {
    name: SigningKey.generate("ed25519", bytes([n + 1] * 32)) for n, name in enumerate(NAMES)
}  # fixed: a demo
LAPTOP = SigningKey.generate("ed25519", bytes([9] * 32))


def join(signer: SigningKey) -> gossip.GossipLog:
    members = [key.public.did() for key in KEYS.values()]
    return gossip.open(ROOM, signer=signer, access=gossip.sessions(*members))


def conversation(log: gossip.GossipLog) -> list[str]:
    names = {key.public.did(): name for name, key in KEYS.items()} | {LAPTOP.public.did(): "cleo's laptop"}
    return [
        f"{signed.message.clock:>2}  {names[signed.signature.public_key]:<14}{signed.message.payload['text']}"
        for signed in log.iterate()
        if "text" in signed.message.payload
    ]


def main() -> None:
    ada, bob, cleo = (join(KEYS[name]) for name in NAMES)
    laptop = join(LAPTOP)

    ada.append({"text": "the tide is at six"})
    gossip.sync_both(ada, bob)
    bob.append({"text": "I bring the rope"})
    ada.append({"text": "and I the lamp"})  # at the same time, elsewhere

    gossip.sync_both(cleo, ada)
    grant = gossip.make_session(KEYS["cleo"], ROOM, LAPTOP.public.did(), until_clock=20)
    session = cleo.append(grant).id
    gossip.sync_both(laptop, cleo)
    laptop.append({"text": "cleo here, from my laptop", "via": session})

    for one, two in ((ada, bob), (bob, laptop), (laptop, cleo), (cleo, ada), (ada, bob)):
        gossip.sync_both(one, two)
    assert ada.root() == bob.root() == cleo.root() == laptop.root()
    print(*conversation(bob), sep="\n")

    stranger = SigningKey.generate("ed25519", bytes([77] * 32))
    try:
        ada.append({"text": "let me in"}, signer=stranger)
    except Exception as refusal:
        print(f"refused: {type(refusal).__name__}")


if __name__ == "__main__":
    main()
