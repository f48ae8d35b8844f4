"""Two signed heads of one log that cannot both be true: kept as evidence, and checked by whoever is shown it.

    {"version":1, "kind":"head_fork", "first":"<note>", "second":"<note>", "root":"<hex>"|null, "path":["<hex>"…]}

`second` has at least as many leaves as `first`. `path` proves that under its root the first so many leaves have the
root `root`, which is not the one that `first` has: the log signed two histories. Where `root` is null nobody has shown
that; the two were merely not shown to agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ropewalk.errors import Forked, Invalid, ProofRefused
from ropewalk.kernel import jcs, merkle
from ropewalk.kernel.digest import hash_from_hex
from ropewalk.kernel.note.note import SignedHead, claimed_head
from ropewalk.kernel.report import Report, Step
from ropewalk.kernel.terminal_text import printable
from ropewalk.ledger.proof.steps import compared, short
from ropewalk.ledger.transparency.head_check import HeadTrust, describe_head, log_step
from ropewalk.ledger.transparency.head_signers import SHOWN_MAX

_PATH_MAX = 64
HEAD_FORK_BYTES_MAX = 4 << 20  # two notes of the largest kind as JSON texts
_MEMBERS = {"version", "kind", "first", "second", "root", "path"}


@dataclass(frozen=True, slots=True)
class HeadFork:
    """Both heads, and what shows that they disagree."""

    first: bytes
    second: bytes
    root: bytes | None = None
    path: tuple[bytes, ...] = ()

    @property
    def is_proven(self) -> bool:
        """Whether it is shown that the two disagree, and not only that nobody showed they agree."""
        return self.root is not None

    def to_bytes(self) -> bytes:
        """As a file."""
        value: dict[str, Any] = {
            "version": 1,
            "kind": "head_fork",
            "first": self.first.decode(),
            "second": self.second.decode(),
            "root": None if self.root is None else self.root.hex(),
            "path": [each.hex() for each in self.path],
        }
        return jcs.encode(value)

    def check(self) -> None:
        """Raise unless the two heads disagree."""
        first, second = self.heads()
        assert self.root is not None
        # Two roots of one size need no proof, and an empty log could give none.
        if first.size != second.size or self.path or self.root != second.root:
            merkle.verify_consistency(
                first.size, second.size, self.path, self.root, second.root, merkle.SHA256
            )
        if self.root == first.root:
            raise ProofRefused(f"the two agree: {first.size} have the root {short(first.root)} in both")

    def heads(self) -> tuple[SignedHead, SignedHead]:
        """What the two say."""
        return claimed_head(self.first)[0], claimed_head(self.second)[0]

    def error(self) -> Forked | ProofRefused:
        """The refusal that tells of it."""
        first, second = self.heads()
        both = f"{describe_head(first)}, and {describe_head(second)}"
        if self.is_proven:
            return Forked(
                f"the log has signed two histories: {both}",
                advice="Both heads were kept as evidence; whoever runs the log must explain them.",
                ours=first.root.hex(),
                theirs=second.root.hex(),
            )
        return ProofRefused(
            f"nothing shows that the second head extends the first: {both}",
            advice="The proof is wrong, or the log has forked. Both heads were kept; tiles would tell which.",
        )


def parse_head_fork(raw: bytes) -> HeadFork:
    """Both sides of a fork from the document that keeps them; form only.

    >>> parse_head_fork(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: head fork: expected version, kind, first, second, root and path
    """
    value: Any = jcs.parse(raw, bytes_max=HEAD_FORK_BYTES_MAX)
    if not isinstance(value, dict) or value.keys() != _MEMBERS:
        raise Invalid("head fork: expected version, kind, first, second, root and path")
    if type(value["version"]) is not int or value["version"] != 1 or value["kind"] != "head_fork":
        raise Invalid("head fork: of a version or kind that is not known")
    if not isinstance(value["first"], str) or not isinstance(value["second"], str):
        raise Invalid("head fork: first and second are notes")
    root, path = hash_from_hex(value["root"]), value["path"]
    if root is None and value["root"] is not None:
        raise Invalid("head fork: root is 64 lower-case hex digits or null")
    if not isinstance(path, list) or len(path) > _PATH_MAX:
        raise Invalid("head fork: path is a short list of hashes")
    hashes = tuple(each for each in map(hash_from_hex, path) if each is not None)
    if len(hashes) != len(path) or (root is None and path):
        raise Invalid("head fork: path holds 64 lower-case hex digits each, and nothing without a root")
    fork = HeadFork(value["first"].encode(), value["second"].encode(), root, hashes)
    first, second = fork.heads()
    if first.size > second.size:
        raise Invalid("head fork: the first head is the smaller one")
    return fork


def verify_head_fork(fork: HeadFork, trust: HeadTrust) -> Report:
    """Whether this proves that a log signed two histories. It holds if every step does."""
    (first, lines), (second, more) = claimed_head(fork.first), claimed_head(fork.second)
    same = first.origin == second.origin
    one, other = (printable(head.origin, SHOWN_MAX) for head in (first, second))
    steps = [
        Step("same_log", "passed" if same else "failed", one if same else f"{one}, and {other}"),
        log_step("first_signature", first, lines, trust),
        log_step("second_signature", second, more, trust),
    ]
    said = f"{describe_head(first)}; {describe_head(second)}"
    if fork.is_proven:
        steps.append(compared("two_histories", said, fork.check))
    else:
        steps.append(Step("two_histories", "not_checked", f"nothing shows that they disagree: {said}"))
    return Report.of(steps, entries=2)
