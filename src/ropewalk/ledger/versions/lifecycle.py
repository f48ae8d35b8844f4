"""Lifecycle of envelope versions in one repository: a table on disk, the version gate, and notices before a sunset.

<home>/ledger/lifecycle.json   stages and sunsets; without it the versions this code knows are all active
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from ropewalk.disk import key_files
from ropewalk.disk.durable import Disk, read_optional
from ropewalk.errors import Damaged, Denied, Invalid, NotFound, Replayed, Unavailable, Unverified
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.report import Step
from ropewalk.ledger.block.block import Block
from ropewalk.ledger.channel.segments.reader import Segments
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.ingest.log import ChannelWriter
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.rules.policy import Policy
from ropewalk.ledger.versions.muscles import check_no_muscle_left
from ropewalk.ledger.versions.statements import VersionAct, lifecycle_fault, read_acts
from ropewalk.ledger.versions.versions import (
    LIFECYCLE,
    Lifecycle,
    Stage,
    due_notices,
    encode_lifecycle,
    gate,
    parse_lifecycle,
    parse_range,
)

ALERT_TYPE = "ledger.version.sunset"
RECORDED_ADVICE = (
    "The table was edited by hand, or a change was interrupted. Restore what the channel recorded, or record the "
    "change: `ropewalk ledger lifecycle set VERSION STAGE --channel C`."
)
DOMAIN = "ropewalk.lifecycle"


def read_lifecycle(home: Path) -> tuple[Lifecycle, ...]:
    """Return the lifecycle of every version; versions missing in the table have the built-in default."""
    raw = read_optional(_path(home))
    if raw is None:
        return LIFECYCLE
    try:
        table = parse_lifecycle(raw)
    except Invalid as error:
        raise Damaged(f"{_path(home)}: {error.detail}", reason="lifecycle") from error
    named = {life.minor for life in table}
    return (*table, *(life for life in LIFECYCLE if life.minor not in named))


def move_version(
    home: Path,
    version: str,
    stage: Stage,
    *,
    sunset: str | None = None,
    grace_days: int | None = None,
    recorded: tuple[str, int] | None = None,
) -> Lifecycle:
    """Move a version to its next stage, or change the dates of its stage. Stages only move forward.

    `recorded` is the channel and height at which the change is sealed. A recorded version must not be changed
    otherwise, or the table would differ from the channel.
    """
    moved, raw = _moved(home, version, stage, sunset=sunset, grace_days=grace_days, recorded=recorded)
    path = _path(home)
    try:
        Disk().make_directories(path.parent)
        Disk().replace(path, raw, mode=0o600)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error
    return moved


def check_move(
    home: Path, version: str, stage: Stage, *, sunset: str | None = None, grace_days: int | None = None
) -> None:
    """Raise the error such a move would raise; write nothing."""
    _moved(home, version, stage, sunset=sunset, grace_days=grace_days, recorded=("", 0))


def _moved(
    home: Path,
    version: str,
    stage: Stage,
    *,
    sunset: str | None,
    grace_days: int | None,
    recorded: tuple[str, int] | None,
) -> tuple[Lifecycle, bytes]:
    """Return the version after the move, and the table."""
    table = read_lifecycle(home)
    minor = ".".join(map(str, parse_range(version)))
    life = next((each for each in table if each.minor == minor), None)
    if life is None:
        raise NotFound(f"version {version} is unknown to this installation", version=version)
    if life.recorded is not None and recorded is None:
        raise Denied(
            f"the changes of version {version} are recorded in channel {life.recorded[0]}",
            advice=f"Record this one too: --channel {life.recorded[0]}.",
        )
    moved = life if stage == life.stage else life.moved_to(stage)
    moved = replace(
        moved,
        recorded=recorded,
        sunset=sunset if sunset is not None else moved.sunset,
        grace_days=grace_days if grace_days is not None else moved.grace_days,
    )
    table = tuple(moved if each.minor == minor else each for each in table)
    if stage in ("deprecated", "disabled"):
        check_no_muscle_left(home, table, minor)
    raw = encode_lifecycle(table)
    parse_lifecycle(raw)  # never write what cannot be read back
    return moved, raw


def open_minors(home: Path, policy: Policy | None, now_ns: int) -> frozenset[str]:
    """Return the versions that the version gate of a channel accepts now."""
    table = read_lifecycle(home)
    named = policy.versions if policy is not None else None
    return gate(now_ns, table, named, rehearsed=_rehearsed(home, table, policy))


def _rehearsed(home: Path, table: Sequence[Lifecycle], policy: Policy | None) -> frozenset[str] | None:
    """Return the versions that a policy with a rehearsal rule accepts: their recorded change was held to that rule.

    The change names the policies that were asked, so one recorded before a channel existed opens nothing there.
    """
    if policy is None or not policy.rehearsals:
        return None
    acts = {life.minor: _recorded_act(home, life) for life in table}
    asked = {minor: act.documents for minor, act in acts.items() if act is not None}
    return frozenset(
        minor
        for minor, said in asked.items()
        if said is not None and policy.hash.hex() in said.policies.values()
    )


def check_recorded(home: Path, table: Sequence[Lifecycle]) -> None:
    """Raise Damaged if a row differs from the change recorded in its channel."""
    for life in table:
        if life.recorded is None:
            continue
        channel, height = life.recorded
        act = _recorded_act(home, life)
        fault = f"{life.minor}.x: block {height} of channel {channel} records no change of it"
        found = lifecycle_fault(life, act) if act is not None else fault
        if found is not None:
            raise Damaged(f"{_path(home)}: {found}", reason="lifecycle", advice=RECORDED_ADVICE)


def _recorded_act(home: Path, life: Lifecycle) -> VersionAct | None:
    """Return the change of a version in the block that its row names."""
    if life.recorded is None:
        return None
    channel, height = life.recorded
    try:
        block = Block.from_lines(Segments(home / "ledger" / channel).find(height).lines)
    except NotFound:
        return None
    acts = [act for act in read_acts(block) if act.protocol_version == f"{life.minor}.x"]
    return acts[-1] if acts else None


def lifecycle_step(home: Path, channel: str, acts: Mapping[str, tuple[int, VersionAct]]) -> Step | None:
    """Check the table against all changes that a channel records, by version with the height of the last.

    Return None if neither refers to the other. A channel of another repository records that repository's table.
    """
    try:
        table = {f"{life.minor}.x": life for life in read_lifecycle(home)}
    except Damaged as error:
        return Step("lifecycle", "failed", error.detail)
    rows = {version: life for version, life in table.items() if life.recorded and life.recorded[0] == channel}
    if not rows and not acts:
        return None
    for version in sorted({*rows, *acts}):
        life, last = table.get(version), acts.get(version)
        if last is None:
            text = f"{version}: the table names channel {channel}, which has no record of a change"
            return Step("lifecycle", "failed", text)
        if life is None:
            continue
        if life.recorded is not None and life.recorded[0] != channel:
            continue  # another channel has recorded a later change, which is checked instead
        fault = lifecycle_fault(life, last[1])
        if fault is not None:
            ours = life.recorded is not None or seals_channel(home, channel)
            return Step("lifecycle", "failed", fault) if ours else Step.optional("lifecycle", fault)
    return Step("lifecycle", "passed", f"{len(acts)} versions match the channel's records")


def seals_channel(home: Path, channel: str) -> bool:
    """Return whether a key of this repository signed the last block of a channel."""
    last = None
    for record in Segments(home / "ledger" / channel).scan():
        last = record
    if last is None:
        return False
    signer = Block.from_lines(last.lines).record.signer
    return any(found.public == signer for found in key_files.ls(home / "keys"))


class VersionGate:
    """The version gate of an open channel: it follows the clock and changes of the table.

    >>> sorted(VersionGate(Path("/nonexistent"), None, lambda: 0)())
    ['1.0', '1.1']
    """

    def __init__(self, home: Path, policy: Policy | None, now_ns: Callable[[], int]) -> None:
        self._home, self._now_ns = home, now_ns
        self._path = str(_path(home))
        self._policy = policy
        self._versions = policy.versions if policy is not None else None
        self._read()

    def __call__(self) -> frozenset[str]:
        if _mark(self._path) != self._mark:
            self._read()
        return self._steady if self._steady is not None else self._gate()

    def _gate(self) -> frozenset[str]:
        return gate(self._now_ns(), self._table, self._versions, rehearsed=self._rehearsed)

    def _read(self) -> None:
        mark = _mark(self._path)  # before the table: if it changes meanwhile, it is read again
        self._table = read_lifecycle(self._home)
        check_recorded(self._home, self._table)
        self._rehearsed = _rehearsed(self._home, self._table, self._policy)
        # Without a sunset the answer does not depend on the clock.
        self._steady = None if any(life.sunset is not None for life in self._table) else self._gate()
        self._mark = mark


def _mark(path: str) -> tuple[int, int] | None:
    """Return a stamp that changes with the table. Read for every batch; a `Path` costs ten times as much."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def version_to_write(home: Path, policy: Policy | None, now_ns: int) -> str:
    """Return the version for our own envelopes: the oldest accepted one, which most readers support.

    >>> version_to_write(Path("/nonexistent"), None, 0)
    '1.0.0'
    """
    minors = open_minors(home, policy, now_ns)
    if not minors:
        raise Unverified(
            "no envelope version is accepted any more", advice="See `ropewalk ledger lifecycle show`."
        )
    return min((tuple(map(int, minor.split("."))), f"{minor}.0") for minor in minors)[1]


def notices(home: Path, now_ns: int) -> list[dict[str, Any]]:
    """Return versions near their sunset: the nearest of 30, 14 and 7 days."""
    return due_notices(now_ns, read_lifecycle(home))


def send_notices(
    log: ChannelWriter,
    key: SigningKey,
    due: list[dict[str, Any]],
    now_ns: int,
    *,
    protocol_version: str = "1.0.0",
) -> list[tuple[dict[str, Any], LedgerReceipt | None]]:
    """Append an `Alert` for every notice that is due; skip one that the channel already has."""
    sent: list[tuple[dict[str, Any], LedgerReceipt | None]] = []
    for notice in due:
        try:
            sent.append((notice, log.submit(notice_envelope(notice, key, now_ns, protocol_version).raw)))
        except Replayed:
            sent.append((notice, None))
    return sent


def notice_envelope(
    notice: dict[str, Any], key: SigningKey, now_ns: int, protocol_version: str = "1.0.0"
) -> Envelope:
    """Return the notice as an `Alert`; the same notice has the same correlation id, so it is accepted once."""
    moment = datetime.fromtimestamp(now_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return build(
        key,
        domain=DOMAIN,
        event_class="Alert",
        event_type=ALERT_TYPE,
        payload=cast(jcs.Json, notice),
        timestamp=moment,
        protocol_version=protocol_version,
        correlation_id=f"sunset:{notice['version']}:{notice['sunset']}:{notice['days']}",
    )


def _path(home: Path) -> Path:
    return home / "ledger" / "lifecycle.json"
