"""What a proposal means, for whoever is asked to approve of it: names and dates instead of fingerprints."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from ropewalk.cli.common.command import emit, write_output
from ropewalk.cli.common.locations import here, key_folder
from ropewalk.kernel.terminal_text import printable

WORDS = {
    "rotate": "let the key that seals channel {} give way to another",
    "retire": "end a key of channel {} that has given way",
    "revoke": "revoke a key in channel {}: what it signs from that date on is not believed",
    "destroy": "destroy a key of channel {} for good",
}


def write_proposal(path: str, act: dict[str, Any]) -> None:
    """Write what is to be done, for others to approve; never over a file that somebody may have approved of."""
    from ropewalk.errors import Conflict
    from ropewalk.kernel import jcs

    if path != "-" and Path(path).is_file():
        raise Conflict(
            f"{path} is there already, and people may have approved of it",
            name=path,
            advice="Name another file, or remove that one.",
        )
    write_output(path, jcs.encode(act) + (b"\n" if path == "-" else b""))
    if path != "-":
        emit({"path": path, "act": act}, f"ok  {path}  to be approved with `ropewalk ledger key approve`")


def describe_proposal(act: dict[str, Any]) -> str:
    """What is proposed, in lines for people. `act` is one that was parsed."""
    if act["act"] == "version":
        words = (
            f"move version {act['protocol_version']} to {act['stage']}, recorded in channel {act['channel']}"
        )
        rows = [("sunset", act["sunset"]), ("grace", act["grace_days"] and f"{act['grace_days']} days")]
    else:
        words, known = WORDS[act["act"]].format(act["channel"]), named_keys(act["channel"])
        rows = [
            ("key", known.get(act["key"]) or f"fingerprint {act['key']}, not known here"),
            ("new key", _shown_new(act, known)),
            ("since", act["since"]),
            ("old key until", act.get("until")),
            ("reason", act.get("reason")),
        ]
    return _lines(words, [(name, str(value)) for name, value in rows if value])


def _lines(words: str, rows: list[tuple[str, str]]) -> str:
    """A sentence and what belongs to it, a line each; whoever wrote the proposal steers no terminal."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join([printable(words), *(f"  {name:<{width}}  {printable(value)}" for name, value in rows)])


def _shown_new(act: dict[str, Any], known: dict[str, str]) -> str | None:
    from ropewalk.kernel.keys import PublicKey

    if "new_key" not in act:
        return None
    return known.get(act["new_fingerprint"]) or PublicKey.from_json(act["new_key"]).did()


def named_keys(channel: str) -> dict[str, str]:
    """The keys that are known here by their fingerprints: those of the channel, and those that have a name."""
    from ropewalk.disk import key_files
    from ropewalk.errors import RopewalkError
    from ropewalk.ledger.channel.channel import open_channel

    found: dict[str, str] = {}
    folders = [key_folder()]
    with suppress(RopewalkError):  # one can approve where neither the channel nor a repository is
        folders.append(here().keys)
        with open_channel(here().home, channel) as reading:
            found |= {
                validity.key.identity().hex(): validity.key.did()
                for validity in reading.key_history().validities
            }
    for folder in folders:
        with suppress(RopewalkError):
            for each in key_files.ls(folder):
                if each.public is not None:
                    found[each.public.identity().hex()] = f"{each.name}, {each.public.did()}"
    return found
