"""How `ropewalk verify` checks a repository: every log of every engine, and with --deep every byte of its packs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.cli.common.command import counting, parse_input
from ropewalk.cli.common.locations import here, key_folder

if TYPE_CHECKING:
    from ropewalk.cli.audit.verify import Asked
    from ropewalk.disk.repository_paths import RepositoryPaths
    from ropewalk.kernel.keys import PublicKey
    from ropewalk.kernel.report import Report
    from ropewalk.ledger.proof.trust import Trust


def verify_repository(asked: Asked) -> Report:
    """The report over a repository."""
    from ropewalk.disk.repository_paths import find_repository
    from ropewalk.verification import verify_repository as check

    keys, believed = parse_input(asked.trust, _trust) if asked.trust else ([], None)
    place = find_repository(asked.path) if asked.path is not None else here()
    with counting("verifying", "entries") as progress:
        return check(
            place.git_dir,
            asked.ns,
            deep=asked.deep,
            keys=keys,
            own_keys=[] if asked.trust else _own_keys(place),
            trust=believed,
            progress=progress,
        )


def _own_keys(place: RepositoryPaths) -> list[PublicKey]:
    """Return the public keys of the user and of the repository: what they signed is not a stranger's."""
    from ropewalk.disk import key_files
    from ropewalk.errors import RopewalkError

    found: list[PublicKey] = []
    for folder in (place.keys, key_folder()):
        try:
            found += [each.public for each in key_files.ls(folder) if each.public is not None]
        except RopewalkError:
            continue  # `ropewalk doctor` names a key file that cannot be read
    return found


def trusted_keys(name: str) -> list[PublicKey]:
    """The keys of a trust file: our JSON form, or one C2SP note key a line."""
    return parse_input(name, _trust)[0]


def _trust(raw: bytes) -> tuple[list[PublicKey], Trust | None]:
    """The keys of a trust file, and what it says of channels; or the keys of a list, one C2SP note key a line."""
    from ropewalk.cli.common.note_keys import parse_note_keys
    from ropewalk.ledger.proof.trust import parse_trust

    if raw.lstrip()[:1] == b"{":
        believed = parse_trust(raw)
        return list(believed.block_signers), believed
    return [verifier.key for verifier in parse_note_keys(raw)], None
