"""`ropewalk governance`: propose changes, collect signed approvals, carry them out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import emit, group, parse_input
from ropewalk.cli.common.locations import here, key_folder, signing_key
from ropewalk.cli.common.options import option, required
from ropewalk.cli.git.events import opened
from ropewalk.kernel import jcs
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.bridge.governance.decision import Proposal
    from ropewalk.bridge.governance.run import Governance
    from ropewalk.gitlog.repository.repository import GitRepository
    from ropewalk.kernel.keys import SigningKey

# The options that each action needs.
OPTIONS = {
    "consumer.reset": ("group", "ns", "to"),
    "key.rotate": ("act",),
    "lifecycle.change": ("act",),
    "policy.change": ("policy",),
    "policy.rotate": ("act", "policy"),
}
_key_option = required("--key name", "NAME", "Key that signs; the policy must name it.")


@group(
    "governance",
    "ropewalk governance propose consumer.reset --group ci --ns prod --to beginning --key ada",
    "ropewalk governance approve 01K… --key bob",
    "ropewalk governance execute 01K… --key ada",
)
def governance() -> None:
    """Propose changes, approve or reject them, and carry out what reached its quorum.

    The repository's policy (ropewalk/policy.json in the git directory) names who may do that for which action. Every
    step is a signed event in namespace `governance`, and appears in the message topic `governance`.
    """


@governance.command(
    "propose",
    "ropewalk governance propose consumer.reset --group analytics --ns prod --to beginning --key ada",
    "ropewalk ledger key rotate --channel audit --to node-2027 --propose rotation.json",
    "ropewalk governance propose key.rotate --act rotation.json --key ada",
    "ropewalk governance propose policy.change --policy new.json --key ada",
)
@click.argument("action", type=click.Choice(tuple(OPTIONS)))
@_key_option
@option("--reason", "TEXT", "Why, for the approvers.", default="")
@option("--group", "G", "consumer.reset: the consumer group.")
@option("--ns", "NS", "consumer.reset: the namespace or topic.")
@option("--to", "ULID|beginning|now", "consumer.reset: the last event that counts as handled.")
@option(
    "--act",
    "F",
    "key.rotate, lifecycle.change, policy.rotate: what the ledger command of that purpose wrote with --propose.",
)
@option("--policy", "F", "policy.change: the new policy document; policy.rotate: the new policy bundle.")
def propose(action: str, name: str, reason: str, **given: Any) -> None:
    """Propose ACTION: a consumer reset, a key rotation, a lifecycle change, or another policy."""
    needed = OPTIONS[action]
    values = {option: value for option, value in given.items() if value is not None}
    wrong = [each for each in values if each not in needed]
    missing = [each for each in needed if each not in values]
    for names, words in ((missing, "needs"), (wrong, "does not take")):
        if names:
            raise click.UsageError(f"{action} {words} --{names[0].replace('_', '-')}")
    with opened() as git:
        _emit(_governance(git).propose(_effect(git, action, values), signing_key(name), reason=reason))


def _effect(git: GitRepository, action: str, given: dict[str, Any]) -> dict[str, Any]:
    from ropewalk.bridge.governance.effects import reset_effect

    if action == "consumer.reset":
        return reset_effect(git, **given)
    return {"kind": action, **{name: parse_input(path, jcs.parse) for name, path in given.items()}}


@governance.command("approve", "ropewalk governance approve 01K9Z3T0M4J6Q8R2V5X7B1C3D4 --key bob")
@click.argument("proposal")
@_key_option
def approve(proposal: str, name: str) -> None:
    """Approve a proposal with a signature. `governance show` prints what it does."""
    with opened() as git:
        _emit(_governance(git).approve(proposal, signing_key(name)))


@governance.command("reject", "ropewalk governance reject 01K9Z3T0M4J6Q8R2V5X7B1C3D4 --key bob")
@click.argument("proposal")
@_key_option
def reject(proposal: str, name: str) -> None:
    """Reject a proposal; that is final, and withdraws an approval. Its proposer withdraws the whole proposal."""
    with opened() as git:
        _emit(_governance(git).reject(proposal, signing_key(name)))


@governance.command("execute", "ropewalk governance execute 01K9Z3T0M4J6Q8R2V5X7B1C3D4 --key ada")
@click.argument("proposal")
@_key_option
def execute(proposal: str, name: str) -> None:
    """Carry out a granted proposal, once. Run it again if it was interrupted."""
    with opened() as git:
        _emit(_governance(git).execute(proposal, signing_key(name), _local_keys()))


@governance.command("ls", "ropewalk governance ls --json")
def ls() -> None:
    """List proposals with their state and votes."""
    with opened() as git:
        found = _governance(git).proposals()
    emit({"proposals": [each.to_json() for each in found]}, map(_line, found), "no proposals")


@governance.command("show", "ropewalk governance show 01K9Z3T0M4J6Q8R2V5X7B1C3D4")
@click.argument("proposal")
def show(proposal: str) -> None:
    """Show a proposal: what it does, who voted, and events that do not count."""
    with opened() as git:
        found = _governance(git).get(proposal)
    value = found.to_json()
    rows = [
        (name, value[name]) for name in ("proposer", "reason", "expires", "policy", "fault") if value[name]
    ]
    rows += [(name, ", ".join(value[name])) for name in ("approved_by", "rejected_by") if value[name]]
    rows += [(name, json.dumps(value[name])) for name in ("effect", "result") if value[name]]
    lines = [_line(found), *(f"  {name:<12}{printable(str(text))}" for name, text in rows)]
    lines += [f"  ignored     {ulid}  {printable(why)}" for ulid, why in found.ignored]
    emit(value, lines)


def _governance(git: GitRepository) -> Governance:
    from ropewalk.bridge.governance.run import Governance

    return Governance(git)


def _local_keys() -> tuple[SigningKey, ...]:
    """Return the signing keys of the user and of the repository."""
    from ropewalk.disk import key_files

    folders = (here().keys, key_folder())
    return tuple(
        key_files.load_signing(folder, each.name)
        for folder in folders
        for each in key_files.ls(folder)
        if each.public is not None
    )


def _line(found: Proposal) -> str:
    votes = f"{len(found.approved.keys() - found.rejected)} of {found.needed}"
    return printable(f"{found.ulid}  {found.state:<10} {votes:<8} {found.action}")


def _emit(found: Proposal) -> None:
    again = "  (done before)" if found.replayed else ""
    emit({**found.to_json(), "replayed": found.replayed}, f"ok  {_line(found)}{again}")
