"""Verify a published signed head: its log's signature, its witnesses, its tree, and an older head.

checkpoint       it is a head, and of which log
log_signature    the log itself has signed it
witnesses        enough named witnesses have signed it
tree             tiles, or a channel, give its root
old_signature    the log has signed the older head too
consistency      the older head is a prefix of this one
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ropewalk.errors import Forked, ProofRefused, RopewalkError, SigInvalid
from ropewalk.kernel import merkle
from ropewalk.kernel.keys import PublicKey
from ropewalk.kernel.note.key import SignatureType, Verifier, is_key_name
from ropewalk.kernel.note.note import NoteSignature, SignedHead, claimed_head
from ropewalk.kernel.report import Report, Step
from ropewalk.kernel.terminal_text import printable
from ropewalk.ledger.proof.steps import compared, short
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.transparency.head_signers import SHOWN_MAX, HeadSigner, list_names
from ropewalk.ledger.transparency.witness_policy import distinct_witnesses


@dataclass(frozen=True, slots=True)
class HeadTrust:
    """Trusted signers of heads.

    `keys` are keys of logs, each under its name; `signers` sign blocks, and heads under the log's origin as their
    name. `threshold` is how many witnesses must have signed; None asks for one, but does not fail without.

    >>> HeadTrust().log_keys("log.example/ops")
    ()
    """

    keys: tuple[Verifier, ...] = ()
    signers: tuple[PublicKey, ...] = ()
    witnesses: tuple[Verifier, ...] = ()
    threshold: int | None = None
    origin: str | None = None

    @classmethod
    def of(cls, trust: Trust, threshold: int | None = None) -> HeadTrust:
        """Return the settings for heads in a trust file.

        >>> HeadTrust.of(Trust((), ())).witnesses
        ()
        """
        return cls((), trust.block_signers, trust.witnesses, threshold)

    @classmethod
    def of_keys(cls, keys: Sequence[Verifier]) -> HeadTrust:
        """Split note keys: those of cosignatures are witnesses, the others are keys of logs.

        >>> HeadTrust.of_keys([]).keys
        ()
        """
        logs = tuple(key for key in keys if key.type == SignatureType.ED25519)
        return cls(logs, (), tuple(key for key in keys if key not in logs))

    def log_keys(self, origin: str) -> tuple[Verifier, ...]:
        """Return the keys that may have signed for the log of that origin."""
        named = (
            self.keys if self.origin is not None else tuple(key for key in self.keys if key.name == origin)
        )
        if not is_key_name(origin):
            return named
        return named + tuple(Verifier(origin, key) for key in self.signers if key.alg == "ed25519")


@dataclass(frozen=True, slots=True)
class TreeSource:
    """A readable tree behind a head: a display name, the tree, and an optional deep check."""

    name: str
    tree: merkle.Nodes
    look: Callable[[SignedHead], None] | None = None


def describe_head(head: SignedHead) -> str:
    """Return a short description of a head.

    >>> describe_head(SignedHead("log.example/ops", 4, bytes(32)))
    'log.example/ops at 4, root 0000000000000000…'
    """
    return f"{printable(head.origin, SHOWN_MAX)} at {head.size}, root {short(head.root)}"


def verify_head(
    raw: bytes, trust: HeadTrust, *, source: TreeSource | None = None, old: bytes | None = None
) -> Report:
    """Verify every step of a head, offline. Raise `InvalidNote` if it is not a head; other gaps are *not checked*.

    >>> from ropewalk.kernel.keys import SigningKey
    >>> from ropewalk.ledger.proof.proof import head_signer, signed_head
    >>> key = SigningKey.generate("ed25519", bytes(32))
    >>> raw = signed_head("log.example", "ops", 3, bytes(32), key)
    >>> report = verify_head(raw, HeadTrust(keys=(head_signer("log.example", "ops", key).verifier,)))
    >>> [(step.name, step.status) for step in report.steps][:3]
    [('checkpoint', 'passed'), ('log_signature', 'passed'), ('witnesses', 'not_checked')]
    """
    head, lines = claimed_head(raw)
    said = {"origin": head.origin, "size": head.size, "root": head.root.hex()}
    count = f"{len(lines)} signature{'s' if len(lines) > 1 else ''}"
    steps = [
        Step("checkpoint", "passed", f"{describe_head(head)}, {count}", said),
        log_step("log_signature", head, lines, trust),
        _witnesses_step(head, lines, trust),
    ]
    if source is not None:
        steps.append(_tree_step(head, source))
    if old is None:
        steps.append(Step.optional("consistency", "no older checkpoint was given"))
    else:
        older, older_lines = claimed_head(old)
        steps.append(log_step("old_signature", older, older_lines, trust))
        steps.append(_consistency_step(older, head, source))
    entries = head.size if source is not None and source.look is not None else 1
    return Report.of(steps, entries=entries)


def check_consistency(old: SignedHead, new: SignedHead, tree: merkle.Nodes) -> tuple[bytes, ...]:
    """Prove from its tree that a head extends an older one; raise `Forked` if it does not."""
    got = tree.root(new.size)
    if got != new.root:
        raise ProofRefused(f"the tree leads to {short(got)}, not to the root {short(new.root)} of the head")
    before, path = tree.root(old.size), tree.consistency(old.size, new.size)
    try:
        # Nodes may come from any source: they are used only if they lead to the head.
        merkle.verify_consistency(old.size, new.size, path, before, new.root, merkle.SHA256)
    except ProofRefused as error:
        raise ProofRefused(
            "the tree contradicts itself: some of its hashes are not those of the log"
        ) from error
    if before != old.root:
        raise Forked(
            f"two histories: {old.size} had the root {short(old.root)}, and under the head of {new.size} "
            f"they have {short(before)}",
            ours=old.root.hex(),
            theirs=before.hex(),
        )
    return path


def log_step(name: str, head: SignedHead, lines: Sequence[NoteSignature], trust: HeadTrust) -> Step:
    """Check that the log named in a head has signed it."""
    keys = {(key.name, key.key_id): key for key in trust.log_keys(head.origin)}
    names = list_names(line.name for line in lines)
    if trust.origin is not None and head.origin != trust.origin:
        return Step(name, "failed", _other_log(head, [trust.origin]))
    if not keys and trust.keys:
        return Step(name, "failed", _other_log(head, [key.name for key in trust.keys]))
    if not keys:
        return Step.untrusted(name, f"no key of the log was given: signed by {names}")
    ours = [(keys[line.name, line.key_id], line) for line in lines if (line.name, line.key_id) in keys]
    if not ours:
        ids = ", ".join(key.key_id.hex() for key in keys.values())
        others = [line.key_id.hex() for line in lines if line.name in {key.name for key in keys.values()}]
        if others:
            why = f"signed by another key of that name: {others[0]}, where {ids} is trusted"
            return Step(name, "failed", why)
        return Step(name, "failed", f"not signed by the log: signed by {names}, where {ids} is trusted")
    try:
        for key, line in ours:
            key.verify(head.to_text(), line.raw)
    except SigInvalid as error:
        return Step(name, "failed", printable(error.detail, SHOWN_MAX))
    return Step(name, "passed", f"{printable(ours[0][0].name, SHOWN_MAX)}, key {ours[0][0].key_id.hex()}")


def _other_log(head: SignedHead, expected: Sequence[str]) -> str:
    return f'head of "{printable(head.origin, SHOWN_MAX)}", where {list_names(expected)} was expected'


def _witnesses_step(head: SignedHead, lines: Sequence[NoteSignature], trust: HeadTrust) -> Step:
    own = {key.key for key in trust.log_keys(head.origin)} | set(trust.signers)
    # The log's key is not a witness under another name. Two names of a key, or two keys of a name, are one witness.
    named = {(key.name, key.key_id): key for key in trust.witnesses if key.key not in own}
    many = len(distinct_witnesses(named.values()))
    wanted = trust.threshold if trust.threshold is not None else 1
    if not named:
        if not trust.threshold:
            return Step.optional("witnesses", "no witness is named")
        return Step("witnesses", "failed", f"no witness is named; {wanted} must have signed")
    signed: dict[Verifier, HeadSigner] = {}
    for line in lines:
        witness = named.get((line.name, line.key_id))
        if witness is None:
            continue
        try:
            time_s = witness.verify(head.to_text(), line.raw)
        except SigInvalid as error:
            return Step("witnesses", "failed", printable(error.detail, SHOWN_MAX))
        signed.setdefault(witness, HeadSigner(line.name, line.key_id.hex(), "witness", time_s))
    seen = [signed[witness] for witness in distinct_witnesses(signed)]
    fields = {"witnesses": [signer.to_json() for signer in seen], "threshold": wanted}
    said = ", ".join([f"{len(seen)} of {many} named", *(signer.explain() for signer in seen)])
    if len(seen) < wanted and trust.threshold is not None:
        return Step("witnesses", "failed", f"{said}; {wanted} must have signed", fields)
    if not seen:  # the caller named witnesses: one is required, unless --threshold 0 says otherwise
        return Step("witnesses", "not_checked", said, fields, "required" if wanted else "optional")
    return Step("witnesses", "passed", said, fields)


def _tree_step(head: SignedHead, source: TreeSource) -> Step:
    def check() -> None:
        got = source.tree.root(head.size)
        if got != head.root:
            raise ProofRefused(f"it leads to {short(got)}, not to the root {short(head.root)} of the head")
        if source.look is not None:
            source.look(head)

    return compared("tree", f"{source.name}: {head.size} under root {short(head.root)}", check)


def _consistency_step(old: SignedHead, new: SignedHead, source: TreeSource | None) -> Step:
    said = f"{old.size} under root {short(old.root)}, {new.size} under root {short(new.root)}"
    if old.origin != new.origin:
        return Step("consistency", "failed", f'the older head is of "{printable(old.origin, SHOWN_MAX)}"')
    if old.size > new.size:
        return Step("consistency", "failed", f"the older head has {old.size} leaves, this one {new.size}")
    if old.size == new.size or old.size == 0:
        return compared("consistency", said, lambda: _check_trivial(old, new))
    if source is None:
        return Step("consistency", "not_checked", f"no tiles and no channel to prove it from: {said}")
    try:
        check_consistency(old, new, source.tree)
    except RopewalkError as error:
        return Step("consistency", "failed", error.detail)
    return Step("consistency", "passed", said)


def _check_trivial(old: SignedHead, new: SignedHead) -> None:
    if old.size == new.size and old.root != new.root:
        raise Forked(f"two histories: one size, {old.size}, with two roots")
    merkle.verify_consistency(old.size, new.size, (), old.root, new.root, merkle.SHA256)
