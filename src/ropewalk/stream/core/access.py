"""Who may see what on a stream: refs and topics a policy allows, minus those it denies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ropewalk.stream.core.patterns import Kind, Pattern, parse_pattern

# The private index names what is sealed, and for whom; no policy opens it to a stream.
NEVER: Final = (parse_pattern("ref", "refs/gatos/private/**"),)


@dataclass(frozen=True, slots=True)
class Access:
    """Rules for the readers of one stream: seen is what an `allow` pattern matches and no `deny` pattern does.

    `sealed`: the rules are unknown for now, so nothing is visible, and nothing is refused for good.
    """

    allow: tuple[Pattern, ...]
    deny: tuple[Pattern, ...]
    sealed: bool = False

    def sees(self, kind: Kind, name: str) -> bool:
        """Return whether frames about this name may be sent.

        >>> EVERYBODY.sees("ref", "refs/gatos/private/user-ada/notes"), EVERYBODY.sees("topic", "jobs/pending")
        (False, True)
        """
        return _any(self.allow, kind, name) and not _any(self.deny, kind, name)

    def denies(self, pattern: Pattern) -> bool:
        """Return whether nothing the pattern could match may be seen, as far as that is plain from the rules alone."""
        if any(rule.covers(pattern) for rule in self.deny):
            return True
        plain = not self.sealed and "*" not in pattern.text and ">" not in pattern.text
        return plain and not _any(self.allow, pattern.kind, pattern.text)


def parse_access(rules: Mapping[str, Any]) -> Access:
    """Parse rules as the `stream` member of a policy has them; without `allow` everything is allowed.

    >>> access = parse_access({"topics": {"deny": ["payroll.**"]}})
    >>> access.sees("topic", "payroll/march"), access.sees("topic", "jobs")
    (False, True)
    """
    refs, topics = rules.get("refs", {}), rules.get("topics", {})
    return Access(
        allow=(
            *_patterns("ref", refs.get("allow", ["refs/**"])),
            *_patterns("topic", topics.get("allow", ["**"])),
        ),
        deny=(*NEVER, *_patterns("ref", refs.get("deny", ())), *_patterns("topic", topics.get("deny", ()))),
    )


def _patterns(kind: Kind, texts: Iterable[str]) -> Iterable[Pattern]:
    return (parse_pattern(kind, text) for text in texts)


def _any(rules: Iterable[Pattern], kind: Kind, name: str) -> bool:
    return any(rule.kind == kind and rule.matches(name) for rule in rules)


EVERYBODY: Final = parse_access({})
NOBODY: Final = Access((), NEVER, sealed=True)
