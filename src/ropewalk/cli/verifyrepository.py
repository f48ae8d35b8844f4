"""How `ropewalk verify` checks a repository: every log in it, and with --deep every byte of its packs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.cli.manners import counting, read_input
from ropewalk.cli.places import here
from ropewalk.errors import Invalid, NotFound

if TYPE_CHECKING:
    from ropewalk.kernel.keys import PublicKey

__all__ = ["trusted_keys", "verify_repository"]


def verify_repository(path: Path | None, ns: str | None, deep: bool, trust: str | None) -> dict[str, Any]:
    """The report over a repository."""
    from ropewalk.node.verify import verify_repository as check
    from ropewalk.stores.git import GitStore
    from ropewalk.stores.place import find_place

    store = GitStore(find_place(path) if path is not None else here())
    from ropewalk.cli.ledger_proof import verify_channels

    keys = trusted_keys(trust) if trust else ()
    with counting("verifying", "entries") as progress:
        report = check(store, ns, deep=deep, keys=keys, progress=progress)
    channels = verify_channels(store.place.home, ns, deep)
    if ns is not None and not report.steps and not channels["steps"]:
        raise NotFound(f"there is no log {ns!r} in {store.place.git_dir}", topic=ns)
    answer = report.to_json()
    return {
        **answer,
        "ok": answer["ok"] and channels["ok"],
        "steps": [*answer["steps"], *channels["steps"]],
        "entries": answer["entries"] + channels["entries"],
    }


def trusted_keys(name: str) -> list[PublicKey]:
    """The keys of a trust file: our JSON form, or one C2SP note key a line."""
    from ropewalk.kernel.keys import PublicKey
    from ropewalk.kernel.notekey import Verifier

    raw = read_input(name)
    if raw.lstrip()[:1] == b"{":
        try:
            document = json.loads(raw)
        except ValueError as error:
            raise Invalid(f"{name} is no trust file: {error}", name=name) from error
        lists = [document.get(name, []) for name in ("block_signers", "head_signers")]
        if not all(isinstance(each, list) for each in lists):
            raise Invalid(f"{name} is no trust file: its signers are no lists", name=name)
        signers = [signer for each in lists for signer in each]
        return [PublicKey.from_json(signer) for signer in signers]
    lines = (line.strip() for line in raw.decode("utf-8", "replace").splitlines())
    return [Verifier.from_text(line).key for line in lines if line and not line.startswith("#")]
