"""`ropewalk verify`: check a repository, a proof, a receipt or a bundle, offline, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from ropewalk.cli.manners import MARKS, Command, emit, session
from ropewalk.errors import Invalid, NotFound
from ropewalk.kernel.plaintext import printable

__all__ = ["KINDS", "Asked", "verify"]

VERIFICATION_FAILED = 5

COSE_SIGN1 = b"\xd2"  # CBOR's tag 18, with which every receipt begins


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be verified, and against what; each kind looks at what concerns it."""

    path: Path | None  # None: the repository we stand in
    ns: str | None = None
    deep: bool = False
    trust: str | None = None
    envelope: str | None = None


# kind → (module, function). The function takes what was asked and returns the report as JSON.
KINDS: dict[str, tuple[str, str]] = {
    "repository": ("ropewalk.cli.verifyrepository", "verify_repository"),
    "proof": ("ropewalk.cli.ledger_proof", "verify_proof_file"),
    "bundle": ("ropewalk.cli.bundle", "verify_bundle_file"),
    "receipt": ("ropewalk.cli.ledger_proof", "verify_receipt_file"),
}


@click.command(
    "verify",
    cls=Command,
    epilog="Examples:\n  ropewalk verify\n  ropewalk verify my.git --ns governance --deep\n"
    "  ropewalk verify proof.json --trust trust.json\n"
    "  ropewalk verify receipt.cose --envelope envelope.json --trust trust.json\n",
)
@click.argument("path", required=False, metavar="[PATH]")
@click.option("--ns", help="Only this namespace or topic.")
@click.option("--deep", is_flag=True, help="Also every byte of every pack.")
@click.option("--trust", metavar="F", help="Keys to trust: a trust file, or lines of note keys.")
@click.option("--steps", is_flag=True, help="A line for every step, also of logs in which all is well.")
@click.option("--envelope", metavar="F", help="With a receipt: the envelope it was given for.")
def verify(
    path: str | None, ns: str | None, deep: bool, trust: str | None, steps: bool, envelope: str | None
) -> None:
    """Verify PATH (a repository, a proof, a receipt, a bundle; default: the repository) from its bytes alone.

    Nothing is fetched and nothing is written. Every step is named as passed, failed or not checked; of several logs,
    those in which all is well have one line each.
    """
    target = Path(path) if path is not None else session().repo
    kind = "repository" if target is None else kind_of(target)
    if kind not in KINDS:
        raise Invalid(f"{target}: a {kind} cannot be verified by this installation", kind=kind)
    if envelope is not None and kind != "receipt":
        raise click.UsageError(f"--envelope goes with a receipt; {target or 'the repository'} is none")
    module, name = KINDS[kind]
    check: Callable[[Asked], dict[str, Any]] = getattr(import_module(module), name)
    report = check(Asked(target, ns, deep, trust, envelope))
    emit(report, lambda: plain(report if steps else {**report, "steps": summed_up(report["steps"])}))
    if not report["ok"]:
        raise click.exceptions.Exit(VERIFICATION_FAILED)


def kind_of(path: Path) -> str:
    """What a path is, by looking at its first bytes."""
    if path.is_dir():
        return "repository"
    try:
        with path.open("rb") as stream:
            start = stream.read(64)
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}", path=str(path)) from error
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return "bundle"
    if start.lstrip()[:1] == b"{":
        return "proof"
    if start.startswith(COSE_SIGN1):
        return "receipt"
    raise Invalid(f"{path} is no repository, no proof, no receipt and no bundle", path=str(path))


def summed_up(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Steps named `<log>:<step>`, with one in place of all those of a log in which nothing failed."""
    logs: dict[str, list[dict[str, Any]]] = {}
    for step in steps:
        log, colon, _ = step["name"].rpartition(":")
        logs.setdefault(log if colon else step["name"], []).append(step)
    shown: list[dict[str, Any]] = []
    for log, of_log in logs.items():
        if len(of_log) == 1 or any(step["status"] == "failed" for step in of_log):
            shown += of_log
            continue
        left = [step["name"].rpartition(":")[2] for step in of_log if step["status"] == "not_checked"]
        said = f"{of_log[0]['detail']}; {len(of_log) - len(left)} of {len(of_log)} steps passed"
        detail = said + (f", not checked: {', '.join(left)}" if left else "")
        shown.append({"name": log, "status": "passed", "detail": detail, "unchecked": len(left)})
    return shown


def plain(report: dict[str, Any]) -> str:
    """A report for people: one line a step, the verdict last."""
    lines = [
        f"{MARKS[step['status']]} {step['name']:<28} {printable(step['detail'])}" for step in report["steps"]
    ]
    unchecked = sum(step.get("unchecked", step["status"] == "not_checked") for step in report["steps"])
    verdict = "ok" if report["ok"] else "FAILED"
    left = f"{unchecked} steps not checked" if unchecked else "nothing unchecked"
    return "\n".join([*lines, f"{verdict}  {report['entries']} entries, {left}"])
