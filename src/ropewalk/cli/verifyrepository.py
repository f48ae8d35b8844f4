"""How `ropewalk verify` checks a repository: every log of every engine, and with --deep every byte of its packs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ropewalk.cli.manners import counting, parse_input
from ropewalk.cli.places import here

if TYPE_CHECKING:
    from ropewalk.cli.verify import Asked
    from ropewalk.kernel.keys import PublicKey
    from ropewalk.ledger.trust import Trust

__all__ = ["trusted_keys", "verify_repository"]


def verify_repository(asked: Asked) -> dict[str, Any]:
    """The report over a repository."""
    from ropewalk.node.verify import verify_repository as check

    keys, believed = parse_input(asked.trust, _trust) if asked.trust else ([], None)
    with counting("verifying", "entries") as progress:
        return check(
            asked.path if asked.path is not None else here().git_dir,
            asked.ns,
            deep=asked.deep,
            keys=keys,
            trust=believed,
            progress=progress,
        ).to_json()


def trusted_keys(name: str) -> list[PublicKey]:
    """The keys of a trust file: our JSON form, or one C2SP note key a line."""
    return parse_input(name, _trust)[0]


def _trust(raw: bytes) -> tuple[list[PublicKey], Trust | None]:
    """The keys of a trust file, and what it says of channels; or the keys of a list, one C2SP note key a line."""
    from ropewalk.cli.notekeys import parse_note_keys
    from ropewalk.ledger.trust import parse_trust

    if raw.lstrip()[:1] == b"{":
        believed = parse_trust(raw)
        return list(believed.block_signers), believed
    return [verifier.key for verifier in parse_note_keys(raw)], None
