"""Stage one: canonical bytes, their name, a signature, a tree, a proof, and one changed byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ropewalk.cli.demo.stage import Stage
from ropewalk.errors import ProofRefused, RopewalkError, SigInvalid
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import Tag, content_id, tagged
from ropewalk.kernel.keys import SigningKey

# Written as people write them: other key orders, spaces and number forms than the canonical ones.
EVENTS = (
    b'{"type": "proposal.created", "payload": {"title": "Caf\\u00e9", "id": 7}}',
    b'{ "payload": {"by": "ada", "id": 7.0}, "type": "proposal.approved" }',
    b'{"type":"deploy.finished","payload":{"service":"web","took_s":1.5e1}}',
)


def run(stage: Stage) -> None:
    """Show the five acts everything else is made of."""
    key = SigningKey.generate("ed25519", os.urandom(32))
    stage.show("a new key", key.public.did())
    stage.say("")
    stage.say("  Three events as people wrote them, as canonical bytes, and the name of those bytes:")
    bodies = [jcs.canonicalise(raw) for raw in EVENTS]
    signatures = [key.sign(body) for body in bodies]
    for body in bodies:
        stage.show("", body.decode())
        stage.show("", content_id(body))
    leaves = [tagged(Tag.ENVELOPE, body) for body in bodies]
    root = merkle.root(leaves)
    path = merkle.inclusion_proof(leaves, 1)
    stage.say("")
    stage.show("tree root", root.hex())
    stage.show("its proof", " → ".join(sibling.hex()[:16] + "…" for sibling in path))
    event, signature = bodies[1], signatures[1]
    for decide in decisions(key, event, signature, path, root).values():
        decide()
    stage.good("event 2 is signed and lies under the root; checking took its bytes, 2 hashes and the root")
    stage.say("")
    stage.say("  One byte changed, 7 became 8:")
    changed = event.replace(b'"id":7', b'"id":8')
    for step, decide in decisions(key, changed, signature, path, root).items():
        try:
            decide()
        except (SigInvalid, ProofRefused) as refusal:
            stage.refused(f"{step}: {refusal.code}, {refusal.detail}")
        else:
            raise RopewalkError(f"the {step} step accepted a changed event")


def decisions(
    key: SigningKey, body: bytes, signature: bytes, path: Sequence[bytes], root: bytes
) -> dict[str, Callable[[], None]]:
    """Return the two trust decisions about event 2, by the name of their step."""
    return {
        "signature": lambda: key.public.verify(body, signature),
        "inclusion": lambda: merkle.verify_inclusion(tagged(Tag.ENVELOPE, body), 1, len(EVENTS), path, root),
    }
