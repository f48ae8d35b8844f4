"""Manage the keys of a channel: find, rotate, retire, revoke and destroy them, with approvals.

Every change of a key is an envelope in the channel (`keys.statements`), signed by the valid key. `propose` makes the
act, approvers sign exactly that act, `execute_act` seals it. No other state is kept: the channel holds everything.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from ropewalk.disk import key_files
from ropewalk.errors import Conflict, Invalid, InvalidKey, InvalidName, NotFound, Unavailable
from ropewalk.kernel.keys import PublicKey, SigningKey
from ropewalk.kernel.terminal_text import printable
from ropewalk.ledger.block.block import parse_record
from ropewalk.ledger.channel.channel import Channel, OpenLog, open_log
from ropewalk.ledger.channel.settings import channels
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.evidence.settings import read_evidence
from ropewalk.ledger.ingest.sealer import foreign_channel
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.keys.approvals import Approval
from ropewalk.ledger.keys.history import KeyHistory
from ropewalk.ledger.keys.lifetimes import Lifetime, lifetime_notices
from ropewalk.ledger.keys.statements import Act, KeyAct, key_envelope, parse_key_statement
from ropewalk.ledger.keys.validity import KeyValidity
from ropewalk.ledger.replay.replay import companion
from ropewalk.ledger.versions.lifecycle import version_to_write

DAY_NS: Final = 86_400 * 10**9
GRACE_NS: Final = 60 * 10**9  # "now" as the caller read it from a clock
ROOT_NOTICE_DAYS: Final = 30  # S4 §13: an overlap of thirty days
Clock = Callable[[], int]


def find_keys(key_history: KeyHistory, *folders: Path) -> tuple[SigningKey, ...]:
    """Return the keys of a channel whose secrets are in the given key folders, newest first.

    A replaced key that cannot be opened is left out; the current one raises.
    """
    found: dict[PublicKey, SigningKey] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            with contextlib.suppress(InvalidKey, InvalidName):  # ignore a broken key file that is not needed
                each = key_files.read(folder, path.stem)
                if each.public is None or each.public in found or key_history.validity(each.public) is None:
                    continue
                try:
                    found[each.public] = key_files.load_signing(folder, each.name)
                except Unavailable:
                    if each.public == key_history.current.key:
                        raise
    return tuple(
        found[validity.key] for validity in reversed(key_history.validities) if validity.key in found
    )


def open_sealing(
    home: Path,
    channel: str,
    keys: Callable[[], Sequence[SigningKey]],
    *,
    wait_s: float = 0.0,
    now_ns: Clock = time.time_ns,
) -> OpenLog:
    """Open a channel for writing with its keys; look them up again if one was replaced while waiting for the lock."""
    found = keys()
    while True:
        try:
            return open_log(home, channel, found[0], also=found[1:], wait_s=wait_s, now_ns=now_ns)
        except Conflict:
            before, found = found, keys()
            if [key.public for key in found] == [key.public for key in before]:
                raise


def propose_rotation(
    home: Path,
    channel: str,
    new_key: PublicKey,
    *,
    since_ns: int | None = None,
    overlap_days: float = 0.0,
    now_ns: Clock = time.time_ns,
) -> KeyAct:
    """Propose to replace the channel's signing key since a time; the old key ends some days later."""
    with Channel(home, channel) as reading:
        old = reading.key_history().current.key
    now = _second(now_ns())
    if since_ns is not None and since_ns < now - GRACE_NS:
        raise Invalid(
            f"the new key must not be valid since {format_timestamp(since_ns)}, which has passed",
            channel=channel,
            advice="A new key is valid from now on or from a later date: omit the date or give a later one.",
        )
    begin = max(now, since_ns if since_ns is not None else 0)
    end = begin + int(overlap_days * DAY_NS)
    return KeyAct("rotate", channel, old.identity(), format_timestamp(begin), format_timestamp(end), new_key)


def propose(
    channel: str,
    act: Act,
    fingerprint: bytes,
    *,
    since_ns: int | None = None,
    reason: str = "",
    now_ns: Clock = time.time_ns,
) -> KeyAct:
    """Propose to retire, revoke or destroy a key since a time."""
    begin = since_ns if since_ns is not None else _second(now_ns())
    return KeyAct(act, channel, fingerprint, format_timestamp(begin), reason=reason)


def execute_act(
    home: Path,
    act: KeyAct,
    keys: Sequence[SigningKey],
    *,
    approvals: Iterable[Approval] = (),
    now_ns: Clock = time.time_ns,
    wait_s: float = 0.0,
) -> LedgerReceipt:
    """Seal an act into its channel. `keys` are the available keys of the channel, and the new one of a rotation."""
    new_key = next((key for key in keys if key.public == act.new_key), None)
    if act.new_key is not None and new_key is None:
        raise NotFound(
            f"the new key {act.new_key.did()} is not available",
            advice="It must accept the rotation: name it with --to in the repository that has its secret.",
        )
    with Channel(home, act.channel) as reading:
        key_history, height = reading.key_history(), reading.head().height
    policy = key_history.policies.current
    known = [key for key in keys if key_history.validity(key.public) is not None]
    _check_makes_sense(act, key_history, height, now_ns())
    if not known:
        raise foreign_channel(act.channel, key_history.current.key)
    with open_log(home, act.channel, known[0], also=known[1:], now_ns=now_ns, wait_s=wait_s) as opened:
        signer = _signer(opened.log.key_history, known, height, now_ns())
        said = key_envelope(
            act,
            signer,
            format_timestamp(min(now_ns(), act.since_ns) if act.act == "rotate" else now_ns()),
            new_key=new_key,
            approvals=approvals,
            protocol_version=version_to_write(home, policy, now_ns()),
        )
        receipt: LedgerReceipt = opened.log.submit(said.raw)
        return receipt


def rotate_key(
    home: Path,
    channel: str,
    old: SigningKey,
    new: SigningKey,
    *,
    since_ns: int | None = None,
    overlap_days: float = 0.0,
    approvals: Iterable[Approval] = (),
    now_ns: Clock = time.time_ns,
    wait_s: float = 0.0,
) -> LedgerReceipt:
    """Replace the key of a channel in one step; the companion channel of its snapshots follows.

    >>> import tempfile
    >>> from ropewalk import ledger
    >>> old, new = (SigningKey.generate("ed25519", bytes([n]) * 32) for n in (1, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     home = Path(folder)
    ...     _ = ledger.create_channel(home, "ea.core", "node", old.public)
    ...     receipt = rotate_key(home, "ea.core", old, new)
    ...     with ledger.open_channel(home, "ea.core") as reading:
    ...         now = reading.key_history().current.key
    >>> receipt.height, now == new.public
    (0, True)
    """
    act = propose_rotation(
        home, channel, new.public, since_ns=since_ns, overlap_days=overlap_days, now_ns=now_ns
    )
    receipt = execute_act(home, act, (old, new), approvals=approvals, now_ns=now_ns, wait_s=wait_s)
    follow_with_snapshots(home, channel, (old, new), now_ns=now_ns, wait_s=wait_s)
    return receipt


def follow_with_snapshots(
    home: Path, channel: str, keys: Sequence[SigningKey], *, now_ns: Clock = time.time_ns, wait_s: float = 0.0
) -> LedgerReceipt | None:
    """Rotate the key of the companion channel of snapshots too; return None if there is nothing to do."""
    beside = companion(channel)
    if beside not in channels(home):
        return None
    with Channel(home, channel) as main, Channel(home, beside) as reading:
        key_history, old = main.key_history(), reading.key_history().current.key
        acts = [parse_key_statement(each.envelope).act for each in main.key_proofs()]
    act = next((each for each in acts if each.act == "rotate" and each.key == old.identity()), None)
    if act is None or old == key_history.current.key:
        return None  # done before, or signed by another key
    twin = KeyAct("rotate", beside, act.key, act.since, act.until, act.new_key)
    return execute_act(home, twin, keys, now_ns=now_ns, wait_s=wait_s)


def _check_makes_sense(act: KeyAct, key_history: KeyHistory, height: int, now_ns: int) -> None:
    """Raise, before anything is opened, if the act is invalid or would leave the channel without a key."""
    validity, current = key_history.find(act.key), key_history.current
    ls = f"`ropewalk ledger key ls --channel {act.channel}` lists its keys."
    if act.act == "rotate":
        if validity is not None and validity.successor is not None:
            raise Conflict(
                f"{validity.key.did()} was already replaced by {validity.successor.did()}",
                channel=act.channel,
                advice="`ropewalk ledger key ls` shows the valid key.",
            )
        if now_ns < current.since_ns:
            raise Conflict(
                f"a rotation is pending: {current.key.did()} is valid since {format_timestamp(current.since_ns)}",
                channel=act.channel,
                advice="Rotate again once that key is valid.",
            )
        return
    if act.act == "revoke":
        _check_revokes_more(act, key_history, ls)
    if validity is None:
        if act.act != "revoke":  # any key may be revoked, also an author's
            raise NotFound(
                f"{act.key.hex()[:16]}… is not a key of channel {act.channel}", channel=act.channel, advice=ls
            )
        return
    if validity.successor is None:
        raise Conflict(
            f"{validity.key.did()} was not replaced yet: rotate first, then {act.act}",
            channel=act.channel,
            advice=ls,
        )
    if (
        act.act == "retire"
        and validity.until_ns is not None
        and validity.until_ns <= min(now_ns, act.since_ns)
    ):
        raise Conflict(
            f"{validity.key.did()} has ended on {format_timestamp(validity.until_ns)}",
            channel=act.channel,
            advice=ls,
        )
    if act.act != "revoke":  # a stolen key ends at once, even if no other is valid
        _check_another_counts(key_history, validity, act.channel, height, max(now_ns, act.since_ns))


def _check_revokes_more(act: KeyAct, key_history: KeyHistory, advice: str) -> None:
    """Raise if the key is already revoked since that date; only an earlier date adds anything."""
    since_ns = min((each.since_ns for each in key_history.revoked.get(act.key, ())), default=None)
    if since_ns is not None and since_ns <= act.since_ns:
        raise Conflict(
            f"{act.key.hex()[:16]}… is revoked since {format_timestamp(since_ns)} already",
            channel=act.channel,
            advice=f"Only an earlier date changes anything: give it with --since. {advice}",
        )


def _check_another_counts(
    key_history: KeyHistory, validity: KeyValidity, channel: str, height: int, at_ns: int
) -> None:
    """Raise if the channel would be left without a valid key from a time on."""
    if validity.is_valid(height, at_ns) and not any(
        other.is_valid(height, at_ns) for other in key_history.validities if other.key != validity.key
    ):
        since = format_timestamp(key_history.current.since_ns)
        raise Conflict(
            f"{validity.key.did()} must sign channel {channel} until "
            f"{key_history.current.key.did()} is valid, on {since}",
            channel=channel,
            advice="No key could sign until then: end the key after that.",
        )


def _signer(key_history: KeyHistory, known: Sequence[SigningKey], height: int, now_ns: int) -> SigningKey:
    """Return the newest available key that is valid now; a key that waits for its date is not."""
    for validity in reversed(key_history.validities):
        for key in known:
            if key.public == validity.key and validity.is_valid(height, now_ns):
                return key
    return known[0]


def destroy_key(
    home: Path,
    act: KeyAct,
    keys: Sequence[SigningKey],
    folder: Path,
    name: str,
    *,
    approvals: Iterable[Approval] = (),
    now_ns: Clock = time.time_ns,
    wait_s: float = 0.0,
) -> LedgerReceipt:
    """Record that a key of a channel was destroyed, then delete its secret. No other local channel may need it."""
    found = key_files.read(folder, name)
    if found.public is None or found.public.identity() != act.key:
        raise Conflict(f'key "{name}" is not the key to be destroyed', name=name)
    if found.protection == "token":
        raise Conflict(
            f'key "{name}" is in a token, which ropewalk does not delete from',
            name=name,
            advice="Revoke it with `ropewalk ledger key revoke`, and delete it with the tools of the token.",
        )
    for each in channels(home):
        with Channel(home, each) as reading:
            key_history, height = reading.key_history(), reading.head().height
        if key_history.current.key == found.public:
            raise Conflict(
                f'key "{name}" still signs channel {each}',
                name=name,
                advice="Rotate it there first: `ropewalk ledger key rotate`.",
            )
        validity = key_history.validity(found.public)
        if validity is not None:  # its successor may still wait for its date
            _check_another_counts(key_history, validity, each, height, now_ns())
    receipt = execute_act(home, act, keys, approvals=approvals, now_ns=now_ns, wait_s=wait_s)
    key_files.destroy(folder, name)
    return receipt


def key_lifetimes(reading: Channel, now_ns: int) -> tuple[Lifetime, ...]:
    """Return when the key and the policy of a channel end, by its policy."""
    policy = reading.policy
    if policy is None:
        return ()
    since_ns = reading.key_history().current.since_ns
    if not since_ns and reading.head().height:
        since_ns = parse_record(reading.index.lines_of(0, None)[0]).header.timestamp_ns
    return policy.lifetimes(since_ns or now_ns)


def key_notices(reading: Channel, now_ns: int) -> list[str]:
    """Return warnings about the keys and the policy of a channel."""
    lines = lifetime_notices(key_lifetimes(reading, now_ns), now_ns)
    key_history = reading.key_history()
    for validity in key_history.validities:
        until_ns = validity.until_ns
        if until_ns is not None and validity.successor is not None and now_ns < until_ns:
            lines.append(
                f"{validity.key.did()} is valid until {format_timestamp(until_ns)}; "
                f"{validity.successor.did()} follows"
            )
    return [*lines, *_root_warnings(reading, now_ns)]


def _root_warnings(reading: Channel, now_ns: int) -> list[str]:
    """Return warnings about evidence roots that have ended or end within a month."""
    evidence = read_evidence(reading.folder.parent.parent, reading.settings.channel)
    if evidence is None or not evidence.roots:
        return []
    # Reading certificates loads a large library; only channels that check evidence need it.
    from ropewalk.ledger.evidence.certificates import parse_pem

    lines = []
    for text in evidence.roots:
        root = parse_pem(text)
        until_ns = int(root.not_valid_after_utc.timestamp()) * 10**9
        if now_ns >= until_ns - ROOT_NOTICE_DAYS * DAY_NS:
            name = printable(root.subject.rfc4514_string(), 80)
            ended = "ended" if now_ns >= until_ns else "ends"
            lines.append(
                f"the root {name} {ended} on {format_timestamp(until_ns)}. Add its successor: "
                "`ropewalk ledger evidence set`."
            )
    return lines


def key_rows(reading: Channel, now_ns: int) -> list[dict[str, Any]]:
    """Return the keys of a channel, oldest first, and whether each is valid for the next block."""
    key_history, height = reading.key_history(), reading.head().height
    rows = []
    for validity in key_history.validities:
        revoked = key_history.revoked.get(validity.key.identity(), ())
        since_ns = min((each.since_ns for each in revoked), default=None)
        rows.append(
            {
                **validity.to_json(),
                "counts": validity.is_valid(height, now_ns),
                "revoked_since": format_timestamp(since_ns) if since_ns is not None else None,
            }
        )
    return rows


def revoked_rows(reading: Channel) -> list[dict[str, Any]]:
    """Return keys that the channel revoked and that never signed it, such as authors' keys: date and reason."""
    key_history = reading.key_history()
    own = {validity.key.identity() for validity in key_history.validities}
    rows = []
    for fingerprint, found in key_history.revoked.items():
        if fingerprint not in own:
            first = min(found, key=lambda each: each.since_ns)
            since = format_timestamp(first.since_ns)
            rows.append({"fingerprint": fingerprint.hex(), "since": since, "reason": first.reason})
    return rows


def _second(ns: int) -> int:
    """Return the time rounded down to a second, for display."""
    return ns - ns % 10**9
