"""The governance rules in force, and the refusal of what only a granted proposal may do."""

from __future__ import annotations

from ropewalk.bridge.governance.policy import POLICY_BYTES_MAX, GovernancePolicy, parse_governance
from ropewalk.disk.durable import read_file
from ropewalk.disk.repository_paths import RepositoryPaths
from ropewalk.errors import Denied, Invalid
from ropewalk.gitlog.privacy.apply import policy_file


def read_governance(place: RepositoryPaths) -> GovernancePolicy | None:
    """Return the governance rules in force; None if the repository has no policy. Unreadable rules are an error."""
    try:
        return parse_governance(read_file(policy_file(place), POLICY_BYTES_MAX + 1))
    except FileNotFoundError:
        return None
    except Invalid as error:
        raise Denied(
            f"the policy {policy_file(place)} cannot be applied: {error.detail}", advice="Correct it."
        ) from error


def is_governed(place: RepositoryPaths, action: str) -> bool:
    """Return whether the policy lets an action be done by proposals only."""
    policy = read_governance(place)
    return policy is not None and action in policy.rules


def require_ungoverned(place: RepositoryPaths, action: str) -> None:
    """Raise `Denied` if the policy lets an action be done by proposals only."""
    if is_governed(place, action):
        raise Denied(
            f"the policy of this repository requires a granted proposal for {action}",
            advice=f"Run: ropewalk governance propose {action}",
        )
