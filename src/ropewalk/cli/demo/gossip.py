"""Three peers write at the same time, part, lie to one another once, and converge to one root."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ropewalk.cli.demo.stage import Stage
from ropewalk.cli.gossip.graph import draw
from ropewalk.errors import RopewalkError, Unverified
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.verify import verify_log
from ropewalk.gossip.peer.topics import open_log
from ropewalk.gossip.sync.questions import SyncRequest, SyncResponse, ValuesResponse, answer
from ropewalk.gossip.sync.session import drive, pull, sync_both
from ropewalk.kernel.keys import SigningKey

TOPIC = "com.example.harbour"
NAMES = ("ada", "bob", "cleo")


def run(stage: Stage) -> None:
    """Show a log without a centre."""
    folder = stage.directory / "gossip"
    peers = [
        open_log(TOPIC, folder / name, signer=SigningKey.generate("ed25519", os.urandom(32)))
        for name in NAMES
    ]
    try:
        _play(stage, peers)
    finally:
        for peer in peers:
            peer.close()
    stage.made["gossip"] = str(folder)


def _play(stage: Stage, peers: Sequence[GossipLog]) -> None:
    ada, bob, cleo = peers
    ada.append({"from": "ada", "text": "the tide is at six"})
    sync_both(ada, bob)
    sync_both(bob, cleo)
    stage.say("  All three have the first message. Now the network is down, and all three write:")
    ada.append({"from": "ada", "text": "I bring the lamp"})
    bob.append_many({"from": "bob", "text": text} for text in ("I bring the rope", "and a spare one"))
    cleo.append({"from": "cleo", "text": "I bring tea"})
    for name, peer in zip(NAMES, peers, strict=True):
        stage.show(name, f"{len(peer)} messages, root {peer.root().hash.hex()[:16]}…")
    _lie(stage, ada, bob)
    for one, two in ((ada, bob), (bob, cleo), (cleo, ada)):
        sync_both(one, two)
    ada.append({"from": "ada", "text": "see you there"})
    for one, two in ((ada, bob), (bob, cleo)):
        sync_both(one, two)
    stage.say("")
    stage.say("  They meet again:")
    roots = {peer.root() for peer in peers}
    if len(roots) != 1:
        raise RopewalkError("the peers did not converge")
    rows = (
        (signed.id, signed.message.parents, _label(signed.message.payload))
        for signed in ada.iterate(reverse=True)
    )
    for line in draw(rows):
        stage.say(f"    {line}")
    stage.good(f"three peers, one root {ada.root().hash.hex()}, and verify finds {_verified(peers)}")


def _label(payload: dict[str, str]) -> str:
    return f"{payload['from']}: {payload['text']}"


def _lie(stage: Stage, target: GossipLog, source: GossipLog) -> None:
    """Show that a peer that changes a word is refused."""

    def ask(request: SyncRequest) -> SyncResponse:
        with source.view() as view:
            response = answer(view, source.profile, request)
        if isinstance(response, ValuesResponse):
            return ValuesResponse(tuple(value.replace(b"rope", b"wine") for value in response.values))
        return response

    try:
        drive(pull(target), ask)
    except Unverified as refusal:
        stage.say("")
        stage.say("  A proxy between bob and ada changes the message:")
        stage.refused(f"{refusal.code}, {refusal.detail}")
    else:
        raise RopewalkError("a changed message was accepted")


def _verified(peers: Sequence[GossipLog]) -> str:
    reports = [verify_log(peer) for peer in peers]
    if not all(report.ok for report in reports):
        raise RopewalkError("a replica does not verify")
    return "nothing wrong in " + ", ".join(str(report.entries) for report in reports) + " messages"
