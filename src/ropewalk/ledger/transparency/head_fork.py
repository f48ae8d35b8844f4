"""Two signed heads of one log that contradict each other: stored and verified as evidence.

    {"version":1, "kind":"head_fork", "first":"<note>", "second":"<note>", "root":"<hex>"|null, "path":["<hex>"…]}

`second` has at least as many leaves as `first`. `path` proves that under its root the first so many leaves have the
root `root`, which is not the one that `first` has: the log signed two histories. If `root` is null that is not
proven; the two were only not proven to agree.
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
    """Both heads, and the proof that they disagree."""

    first: bytes
    second: bytes
    root: bytes | None = None
    path: tuple[bytes, ...] = ()

    @property
    def is_proven(self) -> bool:
        """Whether it is proven that the two disagree, not only unproven that they agree."""
        return self.root is not None

    def to_bytes(self) -> bytes:
        """Return the bytes of its file."""
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
        """Return both heads."""
        return claimed_head(self.first)[0], claimed_head(self.second)[0]

    def error(self) -> Forked | ProofRefused:
        """Return the error."""
        first, second = self.heads()
        both = f"{describe_head(first)}, and {describe_head(second)}"
        if self.is_proven:
            return Forked(
                f"the log has signed two histories: {both}",
                advice="Both heads were kept as evidence; ask the log's operator to explain them.",
                ours=first.root.hex(),
                theirs=second.root.hex(),
            )
        return ProofRefused(
            f"no proof shows that the second head extends the first: {both}",
            advice="The proof is wrong, or the log has forked. Both heads were kept; tiles can decide it.",
        )


def parse_head_fork(raw: bytes) -> HeadFork:
    """Parse both sides of a fork; only the form is checked.

    >>> parse_head_fork(b"{}")
    Traceback (most recent call last):
    ropewalk.errors.Invalid: head fork: expected version, kind, first, second, root and path
    """
    value: Any = jcs.parse(raw, bytes_max=HEAD_FORK_BYTES_MAX)
    if not isinstance(value, dict) or value.keys() != _MEMBERS:
        raise Invalid("head fork: expected version, kind, first, second, root and path")
    if type(value["version"]) is not int or value["version"] != 1 or value["kind"] != "head_fork":
        raise Invalid("head fork: unknown version or kind")
    if not isinstance(value["first"], str) or not isinstance(value["second"], str):
        raise Invalid("head fork: first and second must be notes")
    root, path = hash_from_hex(value["root"]), value["path"]
    if root is None and value["root"] is not None:
        raise Invalid("head fork: root must be 64 lowercase hex digits or null")
    if not isinstance(path, list) or len(path) > _PATH_MAX:
        raise Invalid("head fork: path must be a short list of hashes")
    hashes = tuple(each for each in map(hash_from_hex, path) if each is not None)
    if len(hashes) != len(path) or (root is None and path):
        raise Invalid(
            "head fork: path must hold hashes of 64 lowercase hex digits, and be empty without a root"
        )
    fork = HeadFork(value["first"].encode(), value["second"].encode(), root, hashes)
    first, second = fork.heads()
    if first.size > second.size:
        raise Invalid("head fork: the first head must be the smaller one")
    return fork


def verify_head_fork(fork: HeadFork, trust: HeadTrust) -> Report:
    """Verify that a log signed two histories. The proof is valid if every step passes."""
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
        steps.append(Step("two_histories", "not_checked", f"no proof that they disagree: {said}"))
    return Report.of(steps, entries=2)
