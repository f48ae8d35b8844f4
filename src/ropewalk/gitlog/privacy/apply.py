"""The privacy rules of a repository, applied to every event before it is hashed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import read_file
from ropewalk.disk.key_files import read as read_key
from ropewalk.disk.repository_paths import RepositoryPaths
from ropewalk.errors import Denied, NotFound, RopewalkError, Unavailable
from ropewalk.gitlog.core.commit import rfc3339
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.privacy.blob_store import PrivateRecord, PrivateStore
from ropewalk.gitlog.privacy.pointer import SealedPointer, seal_pointer
from ropewalk.gitlog.privacy.rules import PrivacyOutcome, PrivacyPolicy, Rule, apply_policy, parse_policy
from ropewalk.kernel.keys import SealingKey

CAPABILITY = "gatos-key://v1/xchacha20-poly1305/"


def policy_file(place: RepositoryPaths) -> Path:
    """Return the policy of a repository: a document of the governance policy's schema; none means no rules."""
    return place.home / "policy.json"


def location_of(place: RepositoryPaths) -> str:
    """Return where this repository's private bytes are: the node that holds them, by its public key if it has one."""
    try:
        public = read_key(place.keys, "node").public
    except NotFound:
        public = None
    if public is not None and public.alg == "ed25519":
        return f"gatos-node://ed25519:{public.raw.hex()}"
    return "gatos://private/local"


class PrivacyRules:
    """What the policy of one repository asks for. `keys`, once set, gives the sealing key of a name.

    `on_change` is called with every draft that the rules changed, and the outcome.
    """

    def __init__(
        self,
        place: RepositoryPaths,
        private: PrivateStore,
        *,
        identity: Callable[[], str],
        now_ms: Callable[[], int],
    ) -> None:
        self._place = place
        self._private = private
        self._identity = identity
        self._now_ms = now_ms
        self.keys: Callable[[str], SealingKey] | None = None
        self.on_change: Callable[[Draft, PrivacyOutcome], None] | None = None
        self._policy: tuple[tuple[int, int] | None, PrivacyPolicy | None] = (None, None)

    def apply(self, draft: Draft, policy: PrivacyPolicy | None) -> Draft:
        """Return the draft as it may be recorded, or a refusal."""
        payload = draft.document.get("payload")
        if policy is None or not isinstance(payload, Mapping):
            return draft
        applied = apply_policy(policy, payload, self._sealer(policy) if self.keys is not None else None)
        if not applied.redacted and not applied.pointerized:
            return draft
        if self.on_change is not None:
            self.on_change(draft, applied)
        return replace(draft, document={**draft.document, "payload": applied.payload})

    def policy(self) -> PrivacyPolicy | None:
        """Return the rules as they stand now, None if there are none; rules that cannot be read are a refusal."""
        path = policy_file(self._place)
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error
        mark = (found.st_mtime_ns, found.st_size)
        if self._policy[0] != mark:
            try:
                self._policy = (mark, parse_policy(read_file(path)))
            except RopewalkError as error:
                # Unreadable rules must not count as no rules.
                raise Denied(
                    f"the privacy policy {path} cannot be applied: {error.detail}",
                    advice="Correct it or remove it; until then nothing is recorded.",
                ) from error
            except OSError as error:
                raise Unavailable(f"{path}: {error.strerror}", path=str(path)) from error
        return self._policy[1]

    def _sealer(self, policy: PrivacyPolicy) -> Callable[[bytes, Rule, bool], Mapping[str, Any]]:
        def seal(plaintext: bytes, rule: Rule, low_entropy: bool) -> Mapping[str, Any]:
            assert self.keys is not None
            name = (rule.capability or "").removeprefix(CAPABILITY) or "private"
            try:
                if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
                    raise NotFound(f"capability {rule.capability} names no key of ours")
                key = self.keys(name)
            except RopewalkError as error:
                raise Denied(
                    f"the policy wants {rule.select} behind a pointer, and there is no key for it: {error.detail}",
                    advice=f"Make one with `ropewalk key new {name[:40]} --alg xchacha20poly1305`.",
                    select=rule.select,
                ) from error
            actor = self._actor()
            made = seal_pointer(
                key,
                plaintext,
                actor=actor,
                policy=policy.version,
                location=rule.location or location_of(self._place),
                capability=rule.capability or CAPABILITY + name,
                low_entropy=low_entropy,
            )
            self._private.put(made.blob, record_of(made, actor, policy.version, name, self._now_ms()))
            return made.pointer.document

        return seal

    def _actor(self) -> str:
        mail = self._identity().rpartition("<")[2].rstrip(">")
        return "user:" + (re.sub(r"[^A-Za-z0-9._-]", "-", mail) or "unknown")


def record_of(made: SealedPointer, actor: str, policy: str, key: str, now_ms: int) -> PrivateRecord:
    """Return what the private store keeps of a sealing."""
    assert made.pointer.ciphertext_digest is not None
    return PrivateRecord(made.pointer.ciphertext_digest, made.digest, actor, policy, key, rfc3339(now_ms))
