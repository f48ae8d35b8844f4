"""Write proposals, and describe them to approvers with names and dates instead of fingerprints."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from ropewalk.cli.common.command import write_result
from ropewalk.cli.common.locations import here, key_folder
from ropewalk.cli.ledger.channel import read_channel
from ropewalk.errors import Conflict, RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.terminal_text import printable

WORDS = {
    "rotate": "replace the signing key of channel {}",
    "retire": "end a replaced key of channel {} before its overlap is over",
    "revoke": "revoke a key in channel {}: signatures from that date on are rejected",
    "destroy": "destroy a key of channel {} permanently",
    "policy": "give channel {} another policy",
    "evidence": "give channel {} other trusted evidence",
    "promote": "make a copy of channel {} its writer: the old writer is shut out",
}


def write_proposal(path: str, act: dict[str, Any]) -> None:
    """Write a proposal for others to approve. An existing file is never overwritten: it may be approved already."""
    if path != "-" and Path(path).is_file():
        raise Conflict(
            f"{path} exists, and may have been approved",
            name=path,
            advice="Name another file, or remove that one.",
        )
    said = f"ok  {path}  to be approved with `ropewalk ledger key approve`"
    write_result(path, jcs.encode(act), {"path": path, "act": act}, said)


def describe_proposal(act: dict[str, Any]) -> str:
    """Return a parsed proposal as lines for people."""
    if act["act"] == "version":
        words = (
            f"move version {act['protocol_version']} to {act['stage']}, recorded in channel {act['channel']}"
        )
        rows = [("sunset", act["sunset"]), ("grace", act["grace_days"] and f"{act['grace_days']} days")]
        rows += [(name, act.get("documents", {}).get(name)) for name in ("guide", "transcript")]
    else:
        words, known = WORDS[act["act"]].format(act["channel"]), named_keys(act["channel"])
        rows = [
            ("key", known.get(act["key"]) or f"fingerprint {act['key']}, not known here"),
            ("new key", _shown_new(act, known)),
            ("old policy", act.get("policy_hash")),
            ("new policy", act.get("new_policy_hash")),
            ("old evidence", act.get("evidence_hash")),
            ("new evidence", act.get("new_evidence_hash")),
            ("roots", ", ".join(act.get("roots", ()))),
            ("keys", ", ".join(known.get(each, each) for each in act.get("keys", ()))),
            ("epoch", act.get("epoch")),
            ("blocks", act.get("height")),
            ("last block", act.get("prev_block_hash")),
            ("since", act["since"]),
            ("old key until", act.get("until")),
            ("reason", act.get("reason")),
        ]
    return _lines(words, [(name, str(value)) for name, value in rows if value])


def _lines(words: str, rows: list[tuple[str, str]]) -> str:
    """Return a sentence and its fields, one per line, made safe for a terminal."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join([printable(words), *(f"  {name:<{width}}  {printable(value)}" for name, value in rows)])


def _shown_new(act: dict[str, Any], known: dict[str, str]) -> str | None:
    from ropewalk.kernel.keys import PublicKey

    if "new_key" not in act:
        return None
    return known.get(act["new_fingerprint"]) or PublicKey.from_json(act["new_key"]).did()


def named_keys(channel: str) -> dict[str, str]:
    """Return known keys by fingerprint: those of the channel, and the key files on this machine."""
    from ropewalk.disk import key_files

    found: dict[str, str] = {}
    folders = [key_folder()]
    with suppress(RopewalkError):  # approving needs neither the channel nor a repository
        folders.append(here().keys)
        with read_channel(channel) as reading:
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
