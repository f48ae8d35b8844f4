"""`ropewalk shiplog import` and `export`: convert journals of `git shiplog`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ropewalk.cli.common.command import command, emit, say
from ropewalk.cli.common.locations import sealing_key
from ropewalk.cli.common.options import choice, flag, option, repeated, required
from ropewalk.cli.git.events import opened, short
from ropewalk.errors import Usage
from ropewalk.gitlog.core.layout import check_namespace

if TYPE_CHECKING:
    from ropewalk.gitlog.compat.conversion import Problem
    from ropewalk.gitlog.compat.journal import ImportReport


@command(
    "import", "ropewalk shiplog import --from-compat", "ropewalk shiplog import --from-compat --map QA=qa"
)
@click.option(
    "--from-compat",
    is_flag=True,
    required=True,
    expose_value=False,
    help="Read the journals under refs/_shiplog/.",
)
@repeated(
    "--map pairs", "ENV=NS", "Namespace for an environment (default: its name in lower case); repeatable."
)
@choice(
    "--notes",
    ["copy", "seal", "leave"],
    "Captured output: copy it, seal it behind pointers, or leave it in the journal.",
    default="copy",
)
@option("--key", "NAME", "The sealing key for --notes seal.")
def import_(pairs: tuple[str, ...], notes: str, key: str | None) -> None:
    """Import journals of git shiplog as namespaces.

    A second import adds only new entries, a failed one changes nothing, and two machines get the same commits. Entries
    that cannot be imported are listed and skipped. A journal rewritten since the last import is refused: exit 4.
    """
    from ropewalk.gitlog.compat.transfer import import_from_compat, sealed_note

    if (notes == "seal") != (key is not None):
        raise Usage("--notes seal and --key NAME go together")
    with opened() as log:
        keep = (
            None
            if notes == "copy"
            else (lambda _: None)
            if key is None
            else sealed_note(log, sealing_key(key), key)
        )
        report = import_from_compat(log, _mapping(pairs), keep)
    emit(report.to_json(), lambda: _import_text(report))
    if report.refused is not None:
        raise click.exceptions.Exit(report.refused.exit_code)


@command("export", "ropewalk shiplog export --to-compat --ns prod")
@click.option(
    "--to-compat", is_flag=True, required=True, expose_value=False, help="To a journal under refs/_shiplog/."
)
@required("--ns", "NS", "The namespace.")
@option(
    "--env", "ENV", "The journal's environment; default: the one it was imported from, else the namespace."
)
@flag("--consumers", "Mirror the cursors of the namespace to refs/_shiplog/consumers/GROUP/ENV, too.")
def export(ns: str, env: str | None, consumers: bool) -> None:
    """Write a namespace as a journal that git shiplog lists, shows and validates.

    A journal that is there is extended. What it holds and the namespace lacks has to be imported first.
    """
    from ropewalk.gitlog.compat.transfer import export_to_compat

    check_namespace(ns)
    with opened() as log:
        report = export_to_compat(log, ns, env, consumers=consumers)
    heads = "".join(f"\n    {ref} -> {short(head)}" for ref, head in report.refs.items())
    for problem in report.problems:
        say(_problem_text(problem))
    emit(report.to_json(), f"ok  {report.exported} exported, {report.skipped} there already{heads}")


def _mapping(pairs: tuple[str, ...]) -> dict[str, str]:
    mapping: dict[str, str] = {}
    for pair in pairs:
        # An environment may hold an equals sign, a namespace never does.
        env, equals, name = pair.rpartition("=")
        if not equals or not env or not name:
            raise Usage(f"--map {pair}: expected ENV=NS")
        if mapping.get(env, name) != name:
            raise Usage(f"--map {env} is given twice, as {mapping[env]} and as {name}")
        mapping[env] = name
    return mapping


def _import_text(report: ImportReport) -> str:
    for problem in report.problems:
        say(_problem_text(problem))
    lines = [
        f"{'ok' if report.refused is None else 'in part'}  {report.imported} imported, {report.skipped} there already"
    ]
    lines += [f"    {ref} -> {short(head)}" for ref, head in sorted(report.refs.items())]
    lines += [f"    journal {env} is namespace {ns}" for env, ns in sorted(report.mapped.items())]
    lines += [f"    anchor {each['ns']} -> {short(each['head'])}" for each in report.anchors]
    if report.notes:
        lines.append(f"    {report.notes} notes")
    lines += [f"    not carried over: {each['ref']} ({each['reason']})" for each in report.not_carried]
    return "\n".join(lines)


def _problem_text(problem: Problem) -> str:
    where = " ".join(each for each in (problem.ref, (problem.commit or "")[:7]) if each)
    return f"odd  {where}: {problem.reason}"
