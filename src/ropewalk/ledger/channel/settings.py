"""The settings of a channel: its signer and policy, as stored in its folder.

<home>/ledger/<channel>/channel.json    {"version":1,"channel","key","signer","policy_hash"}
<home>/ledger/<channel>/policy.json     the policy bundle, if there is one
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import Disk, sync_folder
from ropewalk.errors import Conflict, Damaged, Invalid, InvalidJson, InvalidKey, NotFound, Unavailable
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import PublicKey
from ropewalk.ledger.block.block import check_channel_name
from ropewalk.ledger.channel.receipted import make_mark, read_mark
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.rules.policy import Policy, parse_policy

FOLDER = "ledger"


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """The signer of a channel's blocks, by name and by key, and the policy."""

    channel: str
    key: str
    signer: PublicKey
    policy: Policy | None = None

    def trust(self) -> Trust:
        """Return the trust that accepts this channel."""
        return Trust((self.signer,), (self.signer,), self.policy.hash if self.policy is not None else None)


def channels(home: Path) -> list[str]:
    """Return the names of the channels in a repository; one with blocks but no settings is damaged, not absent."""
    folder = home / FOLDER
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(
        each.name for each in found if (each / "channel.json").exists() or (each / "segments").is_dir()
    )


def create_channel(
    home: Path, channel: str, key_name: str, signer: PublicKey, policy: Policy | None = None
) -> ChannelSettings:
    """Create a channel; its name must not exist."""
    folder = home / FOLDER / check_channel_name(channel)
    if (folder / "channel.json").exists():
        raise Conflict(
            f'channel "{channel}" already exists',
            channel=channel,
            advice="Append to it, since policy and keys of a channel are fixed; or choose another name.",
        )
    if has_blocks(folder):
        raise _no_settings(channel)
    settings: dict[str, Any] = {
        "version": 1,
        "channel": channel,
        "key": key_name,
        "signer": signer.to_json(),
        "policy_hash": None if policy is None else policy.hash.hex(),
    }
    try:
        Disk().make_directories(folder, mode=0o700)
        if policy is not None:
            write_file(folder / "policy.json", policy.to_bytes())
        make_mark(folder, Disk())
        write_file(folder / "channel.json", jcs.encode(settings))  # last: with it the channel exists
        sync_folder(folder.parent)
    except OSError as error:
        raise Unavailable(f"{folder}: {error.strerror}", path=str(folder)) from error
    return ChannelSettings(channel, key_name, signer, policy)


def read_settings(home: Path, channel: str) -> ChannelSettings:
    """Return the settings of an existing channel."""
    folder = home / FOLDER / check_channel_name(channel)
    try:
        value = jcs.parse((folder / "channel.json").read_bytes())
    except FileNotFoundError as error:
        if has_blocks(folder):
            raise _no_settings(channel) from error
        raise NotFound(
            f'no channel "{channel}"',
            channel=channel,
            advice="Make one with `ropewalk ledger create --channel NAME`, or append to it.",
        ) from error
    except InvalidJson as error:
        raise Damaged(f"channel {channel}: channel.json is not JSON", reason="settings") from error
    if not isinstance(value, dict) or value.get("version") != 1 or value.get("channel") != channel:
        raise Damaged(f"channel {channel}: channel.json is invalid", reason="settings")
    policy = None
    if value.get("policy_hash") is not None:
        try:
            policy = parse_policy((folder / "policy.json").read_bytes())
        except (FileNotFoundError, Invalid) as error:
            raise Damaged(
                f"channel {channel}: policy.json is missing or cannot be read", reason="policy"
            ) from error
        if policy.hash.hex() != value["policy_hash"]:
            raise Damaged(
                f"channel {channel}: policy.json does not have this channel's policy hash", reason="policy"
            )
    try:
        signer = PublicKey.from_json(value.get("signer"))
    except InvalidKey as error:
        raise Damaged(f"channel {channel}: channel.json names no signer", reason="settings") from error
    return ChannelSettings(channel, str(value.get("key")), signer, policy)


def has_blocks(folder: Path) -> bool:
    """Return whether a channel folder has blocks."""
    with contextlib.suppress(Damaged):
        mark = read_mark(folder)
        if mark is not None and mark.blocks:
            return True
    return (folder / "segments").is_dir()


def _no_settings(channel: str) -> Damaged:
    return Damaged(
        f"channel {channel}: there are blocks, but channel.json is missing",
        reason="settings",
        advice="Restore channel.json from a backup or from `settings` of its archives. Nothing was changed.",
    )


def write_file(path: Path, raw: bytes) -> None:
    """Write a file of a channel atomically and durably."""
    Disk().replace(path, raw)
