"""How `ropewalk verify` checks a repository: every log of every engine, and with --deep every byte of its packs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.cli.manners import counting, parse_input
from ropewalk.cli.places import here
from ropewalk.errors import Invalid, NotFound, RopewalkError, Unavailable

if TYPE_CHECKING:
    from ropewalk.kernel.keys import PublicKey
    from ropewalk.ledger.trust import Trust

__all__ = ["trusted_keys", "verify_repository"]


def verify_repository(path: Path | None, ns: str | None, deep: bool, trust: str | None) -> dict[str, Any]:
    """The report over a repository."""
    from ropewalk.node.verify import verify_repository as check
    from ropewalk.stores.git import GitStore
    from ropewalk.stores.place import find_place

    store = GitStore(find_place(path) if path is not None else here())
    from ropewalk.cli.ledger_proof import verify_channels

    keys, believed = parse_input(trust, _trust) if trust else ([], None)
    with counting("verifying", "entries") as progress:
        report = check(store, ns, deep=deep, keys=keys, progress=progress)
    parts = [
        report.to_json(),
        verify_channels(store.place.home, ns, deep, believed),
        _verify_topics(store.place.home, ns),
    ]
    if ns is not None and not any(part["steps"] for part in parts):
        raise NotFound(f"there is no log {ns!r} in {store.place.git_dir}", topic=ns)
    return {
        **parts[0],
        "ok": all(part["ok"] for part in parts),
        "steps": [step for part in parts for step in part["steps"]],
        "entries": sum(part["entries"] for part in parts),
    }


def _verify_topics(home: Path, only: str | None) -> dict[str, Any]:
    """The report over the gossip topics of a repository, or over the one of that name."""
    from ropewalk.gossip.verify import verify_log
    from ropewalk.node.gossip import open_topic, topics

    steps: list[dict[str, Any]] = []
    entries = 0
    for topic in topics(home):
        if only in (None, topic):
            try:
                with open_topic(home, topic, create=False) as log:
                    report = verify_log(log).to_json()
            except RopewalkError as error:
                status = "not_checked" if isinstance(error, Unavailable) else "failed"
                step = {"name": "open", "status": status, "detail": error.detail}
                report = {"steps": [step], "entries": 0}
            steps += [{**step, "name": f"gossip {topic}: {step['name']}"} for step in report["steps"]]
            entries += report["entries"]
    return {"ok": all(step["status"] != "failed" for step in steps), "steps": steps, "entries": entries}


def trusted_keys(name: str) -> list[PublicKey]:
    """The keys of a trust file: our JSON form, or one C2SP note key a line."""
    return parse_input(name, _trust)[0]


def _trust(raw: bytes) -> tuple[list[PublicKey], Trust | None]:
    """The keys of a trust file, and what it says of channels; or the keys of a list, one C2SP note key a line."""
    from ropewalk.kernel.notekey import Verifier
    from ropewalk.ledger.trust import parse_trust

    if raw.lstrip()[:1] == b"{":
        believed = parse_trust(raw)
        return list(believed.block_signers), believed
    lines = (line.strip() for line in raw.decode("utf-8", "replace").splitlines())
    keys = [Verifier.from_text(line).key for line in lines if line and not line.startswith("#")]
    if not keys:
        raise Invalid("no key is named", advice="Give a trust file, or one note key a line.")
    return keys, None
