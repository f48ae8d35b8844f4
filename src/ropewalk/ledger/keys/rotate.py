"""The keys of a channel at work: found in folders, changed with everybody's approval, looked after.

Whatever is done to a key is an envelope in the channel (`ledger.keyacts`), sealed by the key that counts now. `propose`
says what is to be done, people approve of exactly that, `carry_out` seals it. Nothing else is kept: whoever reads the
channel knows what there is to know.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from ropewalk.disk import key_files
from ropewalk.errors import Conflict, Invalid, InvalidKey, InvalidName, NotFound
from ropewalk.kernel.keys import PublicKey, SigningKey
from ropewalk.kernel.terminal_text import printable
from ropewalk.ledger.block.block import parse_record
from ropewalk.ledger.channel.channel import Channel, OpenLog, open_log
from ropewalk.ledger.channel.settings import channels
from ropewalk.ledger.envelope.fields import format_timestamp
from ropewalk.ledger.evidence.settings import read_evidence
from ropewalk.ledger.ingest.sealer import foreign_channel
from ropewalk.ledger.ingest.ticket import Receipt
from ropewalk.ledger.keys.approvals import Approval
from ropewalk.ledger.keys.history import KeyLine
from ropewalk.ledger.keys.lifetimes import Lifetime, lifetime_notices
from ropewalk.ledger.keys.statements import Act, KeyAct, key_envelope, parse_key_statement
from ropewalk.ledger.keys.validity import KeyLife
from ropewalk.ledger.replay.replay import companion
from ropewalk.ledger.versions.lifecycle import version_to_write

DAY_NS: Final = 86_400 * 10**9
GRACE_NS: Final = 60 * 10**9  # "now", as whoever asks read it from a clock a moment ago
ROOT_NOTICE_DAYS: Final = 30  # S4 §13: an overlap of thirty days
Clock = Callable[[], int]


def find_keys(line: KeyLine, *folders: Path) -> tuple[SigningKey, ...]:
    """Those keys of a channel whose secrets lie in some folders of keys, the newest first."""
    found: dict[PublicKey, SigningKey] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            with contextlib.suppress(
                InvalidKey, InvalidName
            ):  # a broken file that nobody asked for hinders nobody
                each = key_files.read(folder, path.stem)
                if each.public is not None and line.life(each.public) is not None:
                    found.setdefault(each.public, key_files.load_signing(folder, each.name))
    return tuple(found[life.key] for life in reversed(line.lives) if life.key in found)


def open_sealing(
    home: Path, channel: str, keys: Callable[[], Sequence[SigningKey]], *, wait_s: float = 0.0
) -> OpenLog:
    """A channel open for writing with its keys, which are asked for again if one gave way while we stood in line."""
    found = keys()
    while True:
        try:
            return open_log(home, channel, found[0], also=found[1:], wait_s=wait_s)
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
    """The key that seals a channel is to give way to another, since a time, and to end so many days after that."""
    with Channel(home, channel) as reading:
        old = reading.line().current.key
    now = _second(now_ns())
    if since_ns is not None and since_ns < now - GRACE_NS:
        raise Invalid(
            f"the new key would count since {format_timestamp(since_ns)}, which has passed",
            channel=channel,
            advice="A new key counts from now on, or from a later date: leave the date out, or give a later one.",
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
    """A key is to be retired, revoked or destroyed, since a time."""
    begin = since_ns if since_ns is not None else _second(now_ns())
    return KeyAct(act, channel, fingerprint, format_timestamp(begin), reason=reason)


def carry_out(
    home: Path,
    act: KeyAct,
    keys: Sequence[SigningKey],
    *,
    approvals: Iterable[Approval] = (),
    now_ns: Clock = time.time_ns,
    wait_s: float = 0.0,
) -> Receipt:
    """Seal an act into its channel. `keys` are those of the channel that are at hand, and the new one of a rotation."""
    new_key = next((key for key in keys if key.public == act.new_key), None)
    if act.new_key is not None and new_key is None:
        raise NotFound(
            f"the new key {act.new_key.did()} is not at hand",
            advice="It must accept the rotation: name it with --to, where its secret is.",
        )
    with Channel(home, act.channel) as reading:
        line, policy, height = reading.line(), reading.settings.policy, reading.head().height
    known = [key for key in keys if line.life(key.public) is not None]
    _check_makes_sense(act, line, height, now_ns())
    if not known:
        raise foreign_channel(act.channel, line.current.key)
    with open_log(home, act.channel, known[0], also=known[1:], now_ns=now_ns, wait_s=wait_s) as opened:
        signer = _signer(opened.log.line, known, height, now_ns())
        said = key_envelope(
            act,
            signer,
            format_timestamp(min(now_ns(), act.since_ns) if act.act == "rotate" else now_ns()),
            new_key=new_key,
            approvals=approvals,
            protocol_version=version_to_write(home, policy, now_ns()),
        )
        receipt: Receipt = opened.log.submit(said.raw)
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
) -> Receipt:
    """Let the key of a channel give way to another, in one step; the channel of its snapshots follows.

    >>> import tempfile
    >>> from ropewalk import ledger
    >>> old, new = (SigningKey.generate("ed25519", bytes([n]) * 32) for n in (1, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     home = Path(folder)
    ...     _ = ledger.create_channel(home, "ea.core", "node", old.public)
    ...     receipt = rotate_key(home, "ea.core", old, new)
    ...     with ledger.open_channel(home, "ea.core") as reading:
    ...         now = reading.line().current.key
    >>> receipt.height, now == new.public
    (0, True)
    """
    act = propose_rotation(
        home, channel, new.public, since_ns=since_ns, overlap_days=overlap_days, now_ns=now_ns
    )
    receipt = carry_out(home, act, (old, new), approvals=approvals, now_ns=now_ns, wait_s=wait_s)
    follow_with_snapshots(home, channel, (old, new), now_ns=now_ns, wait_s=wait_s)
    return receipt


def follow_with_snapshots(
    home: Path,
    channel: str,
    keys: Sequence[SigningKey],
    *,
    now_ns: Clock = time.time_ns,
    wait_s: float = 0.0,
) -> Receipt | None:
    """Rotate the channel of a channel's snapshots too, which the same key seals; None if there is nothing to do."""
    beside = companion(channel)
    if beside not in channels(home):
        return None
    with Channel(home, channel) as main, Channel(home, beside) as reading:
        line, old = main.line(), reading.line().current.key
        acts = [parse_key_statement(each.envelope).act for each in main.key_proofs()]
    act = next((each for each in acts if each.act == "rotate" and each.key == old.identity()), None)
    if act is None or old == line.current.key:
        return None  # done before, or somebody else's
    twin = KeyAct("rotate", beside, act.key, act.since, act.until, act.new_key)
    return carry_out(home, twin, keys, now_ns=now_ns, wait_s=wait_s)


def _check_makes_sense(act: KeyAct, line: KeyLine, height: int, now_ns: int) -> None:
    """Raise, before anything is opened, for what could not be sealed or would leave the channel without a key."""
    life, current = line.find(act.key), line.current
    ls = f"`ropewalk ledger key ls --channel {act.channel}` says which keys it has."
    if act.act == "rotate":
        if life is not None and life.successor is not None:
            raise Conflict(
                f"{life.key.did()} has given way to {life.successor.did()} already",
                channel=act.channel,
                advice="`ropewalk ledger key ls` says which key counts now.",
            )
        if now_ns < current.since_ns:
            raise Conflict(
                f"a rotation is under way: {current.key.did()} counts since {format_timestamp(current.since_ns)}",
                channel=act.channel,
                advice="Rotate again once that key counts.",
            )
        return
    if act.act == "revoke":
        _check_revokes_more(act, line, ls)
    if life is None:
        if act.act != "revoke":  # anybody's key may be revoked
            raise NotFound(
                f"{act.key.hex()[:16]}… is no key of channel {act.channel}", channel=act.channel, advice=ls
            )
        return
    if life.successor is None:
        raise Conflict(
            f"{life.key.did()} has not given way: rotate first, then {act.act}",
            channel=act.channel,
            advice=ls,
        )
    if act.act == "retire" and life.until_ns is not None and life.until_ns <= min(now_ns, act.since_ns):
        raise Conflict(
            f"{life.key.did()} has ended on {format_timestamp(life.until_ns)}", channel=act.channel, advice=ls
        )
    if act.act != "revoke":  # a stolen key ends at once, whatever comes of it
        _check_another_counts(line, life, act.channel, height, max(now_ns, act.since_ns))


def _check_revokes_more(act: KeyAct, line: KeyLine, advice: str) -> None:
    """Raise if a key is not believed since that date already: only an earlier one says more."""
    since_ns = min((each.since_ns for each in line.revoked.get(act.key, ())), default=None)
    if since_ns is not None and since_ns <= act.since_ns:
        raise Conflict(
            f"{act.key.hex()[:16]}… is revoked since {format_timestamp(since_ns)} already",
            channel=act.channel,
            advice=f"Only an earlier date would say more: give it with --since. {advice}",
        )


def _check_another_counts(line: KeyLine, life: KeyLife, channel: str, height: int, at_ns: int) -> None:
    """Raise if nobody could seal a channel from a time on, for the key that is to end is the only one that counts."""
    if life.counts(height, at_ns) and not any(
        other.counts(height, at_ns) for other in line.lives if other.key != life.key
    ):
        since = format_timestamp(line.current.since_ns)
        raise Conflict(
            f"{life.key.did()} seals channel {channel} until {line.current.key.did()} counts, on {since}",
            channel=channel,
            advice="Nobody could seal it until then: end the key after that.",
        )


def _signer(line: KeyLine, known: Sequence[SigningKey], height: int, now_ns: int) -> SigningKey:
    """Who says it: the newest key at hand that counts now. A key that waits for its date cannot."""
    for life in reversed(line.lives):
        for key in known:
            if key.public == life.key and life.counts(height, now_ns):
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
) -> Receipt:
    """Record that a key of a channel is gone for good, then take its secret away. No other channel here may need it."""
    found = key_files.read(folder, name)
    if found.public is None or found.public.identity() != act.key:
        raise Conflict(f'key "{name}" is not the one that is to be destroyed', name=name)
    for each in channels(home):
        with Channel(home, each) as reading:
            line, height = reading.line(), reading.head().height
        if line.current.key == found.public:
            raise Conflict(
                f'key "{name}" seals channel {each}',
                name=name,
                advice="Rotate it there first: `ropewalk ledger key rotate`.",
            )
        life = line.life(found.public)
        if life is not None:  # the one that follows may still wait for its date
            _check_another_counts(line, life, each, height, now_ns())
    receipt = carry_out(home, act, keys, approvals=approvals, now_ns=now_ns, wait_s=wait_s)
    key_files.destroy(folder, name)
    return receipt


def key_lifetimes(reading: Channel, now_ns: int) -> tuple[Lifetime, ...]:
    """When the key and the policy of a channel end, by its policy."""
    policy = reading.settings.policy
    if policy is None:
        return ()
    since_ns = reading.line().current.since_ns
    if not since_ns and reading.head().height:
        since_ns = parse_record(reading.index.lines_of(0, None)[0]).header.timestamp_ns
    return policy.lifetimes(since_ns or now_ns)


def key_notices(reading: Channel, now_ns: int) -> list[str]:
    """What wants attention about the keys and the policy of a channel."""
    lines = lifetime_notices(key_lifetimes(reading, now_ns), now_ns)
    line = reading.line()
    for life in line.lives:
        until_ns = life.until_ns
        if until_ns is not None and life.successor is not None and now_ns < until_ns:
            lines.append(
                f"{life.key.did()} still counts until {format_timestamp(until_ns)}; {life.successor.did()} follows"
            )
    return [*lines, *_root_warnings(reading, now_ns)]


def _root_warnings(reading: Channel, now_ns: int) -> list[str]:
    """Roots under which the channel judges evidence, and which end within the month or have ended."""
    evidence = read_evidence(reading.folder.parent.parent, reading.settings.channel)
    if evidence is None or not evidence.roots:
        return []
    # Certificates are read with a large library, which only channels that judge evidence should load.
    from ropewalk.ledger.evidence.certificates import parse_pem

    lines = []
    for text in evidence.roots:
        root = parse_pem(text)
        until_ns = int(root.not_valid_after_utc.timestamp()) * 10**9
        if now_ns >= until_ns - ROOT_NOTICE_DAYS * DAY_NS:
            name = printable(root.subject.rfc4514_string(), 80)
            ended = "ended" if now_ns >= until_ns else "ends"
            lines.append(
                f"the root {name} {ended} on {format_timestamp(until_ns)}. Name its successor beside it: "
                "`ropewalk ledger evidence set`."
            )
    return lines


def key_rows(reading: Channel, now_ns: int) -> list[dict[str, Any]]:
    """The keys of a channel, the first first, and whether each counts for the next block."""
    line, height = reading.line(), reading.head().height
    rows = []
    for life in line.lives:
        revoked = line.revoked.get(life.key.identity(), ())
        since_ns = min((each.since_ns for each in revoked), default=None)
        rows.append(
            {
                **life.to_json(),
                "counts": life.counts(height, now_ns),
                "revoked_since": format_timestamp(since_ns) if since_ns is not None else None,
            }
        )
    return rows


def revoked_rows(reading: Channel) -> list[dict[str, Any]]:
    """The keys that the channel revokes and that never sealed it, authors' for one: since when, and why."""
    line = reading.line()
    own = {life.key.identity() for life in line.lives}
    rows = []
    for fingerprint, found in line.revoked.items():
        if fingerprint not in own:
            first = min(found, key=lambda each: each.since_ns)
            since = format_timestamp(first.since_ns)
            rows.append({"fingerprint": fingerprint.hex(), "since": since, "reason": first.reason})
    return rows


def _second(ns: int) -> int:
    """The second that has begun: people read these times."""
    return ns - ns % 10**9
