"""`ropewalk shiplog run`: run a command and record it with its output."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from ropewalk.cli.common.command import command, drop_output, emit_line, fail, say, session
from ropewalk.cli.common.locations import sealing_key
from ropewalk.cli.common.options import choice, flag, option, required
from ropewalk.cli.git.appending import EventWriter, Recorded
from ropewalk.cli.git.capture import forwarded_signals, run_command
from ropewalk.cli.git.events import opened, receipt_line
from ropewalk.errors import Denied, RopewalkError, Unavailable, Usage
from ropewalk.gitlog.core.layout import LOG_NOTES, SHIPLOG, check_namespace
from ropewalk.gitlog.sharing.git_command import run_git
from ropewalk.kernel.digest import content_id
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.gitlog.compat.journal import Note
    from ropewalk.gitlog.core.envelope import Draft
    from ropewalk.gitlog.core.planning import Receipt
    from ropewalk.gitlog.repository.repository import GitRepository

SCRUBBED = "[scrubbed]"
SECRET_NAME = re.compile(
    r"(?i)(pass(word|wd|phrase)?|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?)$"
)
USER_INFO = re.compile(r"(?<=://)[^/@\s]+:[^/@\s]+(?=@)")
OBJECT_ID = re.compile(r"[0-9a-f]{40}")

Withheld: TypeAlias = tuple[str, str | None]  # why output was not kept, and advice
RUN_POLICY = "shiplog-run"  # bound into sealed output as the policy version
SHOWN_MAX = 3  # locations of possible secrets to print
WITHHELD_ADVICE = (
    "Rotate the secret if anyone may have seen it. To keep such output, seal it: --output seal --key NAME. "
    "If it is not a secret: --allow-secret."
)


@command(
    "run",
    "ropewalk shiplog run --ns deploy --service web --reason canary -- ./deploy.sh",
    "ropewalk shiplog run --ns deploy --output seal --key vault -- ./deploy.sh",
    context_settings={"allow_interspersed_args": False},  # an unknown option before CMD is an error
)
@required("--ns", "NS", "The namespace.")
@option("--env", "ENV", "Environment (default: the namespace).")
@option("--service", "SERVICE", "Service that is deployed.")
@option("--artifact", "ARTIFACT", "Build or image that is deployed.")
@option("--reason", "REASON", "Reason for the deployment.")
@option("--ticket", "TICKET", "Ticket that requested it.")
@option("--region", "REGION", "Region it is deployed to.")
@option("--cluster", "CLUSTER", "Cluster it is deployed to.")
@option("--namespace", "NAMESPACE", "Namespace of the cluster.")
@option("--pipeline", "PIPELINE", "CI pipeline that runs it.")
@option("--run-url", "RUN-URL", "Web page of the CI run. Recorded, never fetched.")
@flag("--allow-secret", "Keep the output even if it seems to contain a secret.")
@choice(
    "--output keeping",
    ["keep", "seal", "drop"],
    "Keep the output as a git note, seal it behind a pointer, or only print it.",
    default="keep",
)
@option("--key", "NAME", "Sealing key for --output seal.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD…")
def run(
    ns: str, command: tuple[str, ...], allow_secret: bool, keeping: str, key: str | None, **fields: str | None
) -> None:
    """Run CMD, print its output, and record who ran what, when, where, and the result.

    Exit with the exit code of CMD, like `time`. SIGTERM, SIGINT, SIGHUP and SIGQUIT are forwarded to CMD, and the
    result is recorded; a second signal kills CMD.

    The record has the commit of the work tree (`repo_head`). Passwords and tokens in the arguments of CMD are replaced
    by `[scrubbed]`, unless --allow-secret is given.

    The output is attached to the event as a git note, unless it seems to contain a secret. The event holds the digest
    of the note in `refs.log`: `verify` and `shiplog show` refuse a note that was replaced. Sealed output stays in the
    private store of this repository; its note is a pointer for `ropewalk pointer open`.
    """
    check_namespace(ns)
    if (keeping == "seal") != (key is not None):
        raise Usage("--output seal and --key NAME go together")
    argv = [_text(each) for each in command]
    argv = argv if allow_secret else scrub(argv)
    head = work_tree_head()  # of the code that is deployed, before the command may change it
    given = {name: _text(value) for name, value in fields.items() if value}
    with opened() as log:  # before the command runs, to fail early if it cannot be recorded
        log.allow_secrets = allow_secret
        note = _note(log, key)
        started_ms = log.now_ms()
        _refuse_early(
            log, ns, _draft(log, argv, given, 0, started_ms, started_ms, attached=b"", repo_head=head)
        )
        writer = EventWriter(log, SHIPLOG, ns, "namespace")
        with forwarded_signals() as forwarder:  # until the record is written: every run is recorded
            sink = sys.stderr.buffer if session().json else sys.stdout.buffer
            code, output = run_command(command, sink, forwarder)
            ended_ms = log.now_ms()
            attached, withheld = _make_note(output, keeping, note, allow_secret=allow_secret)
            draft = _draft(
                log,
                argv,
                given,
                code,
                started_ms,
                ended_ms,
                attached=attached,
                repo_head=head,
                signals=forwarder.received,
            )
            try:
                recorded = writer.write_one(draft)
            except RopewalkError as error:
                say("the command ran, but it was NOT recorded:")
                raise click.exceptions.Exit(fail(error, as_json=session().json)) from error
            if attached is not None:
                withheld = _attach(log, recorded.receipt, attached, ended_ms)
        try:
            _answer(
                recorded, code, forwarder.received, withheld, kept=attached is not None and withheld is None
            )
        except OSError:  # a closed terminal or pipe does not change the result of the command
            drop_output(sys.stdout)
            drop_output(sys.stderr)
    raise click.exceptions.Exit(code)


def _answer(
    recorded: Recorded, code: int, signals: Sequence[signal.Signals], withheld: Withheld | None, *, kept: bool
) -> None:
    if session().json:
        emit_line({**recorded.to_json("ns"), "exit_code": code, "log_attached": kept})
    else:
        outcome = "success" if code == 0 else f"failed with exit code {code}"
        say(f"recorded  {outcome}  {receipt_line(recorded.receipt).removeprefix('ok  ')}")
    if signals:
        say(f"the command got {' and '.join(each.name for each in signals)} and ended with {code}")
    if withheld is not None:
        why, advice = withheld
        say(f"the command was recorded, but its output was NOT kept: {why}")
        if advice:
            say(f"       {advice}")
    recorded.remark()


def _text(argument: str) -> str:
    """Return an argument as text; bytes that are not UTF-8 become replacement characters."""
    return os.fsencode(argument).decode("utf-8", "replace")


def _refuse_early(log: GitRepository, ns: str, draft: Draft) -> None:
    """Raise before the command runs what the log would raise when the result is recorded."""
    from ropewalk.gitlog.core.commit import check_trailer, make_trailer
    from ropewalk.gitlog.core.envelope import seal
    from ropewalk.gitlog.privacy.screening import screen_draft

    log.privacy.policy()  # raises if the policy cannot be read
    seal(SHIPLOG, ns, draft.document, log.new_ulid())
    check_trailer(
        make_trailer(draft.trailer, topic=ns, now_ms=log.now_ms(), seq=0, parent=None, previous_anchor=None)
    )
    if not log.allow_secrets:
        screen_draft(draft)
    head = SHIPLOG.head_ref(ns)
    with log.store.turn(head):  # raises if the repository is read-only or its history was rewritten
        tip = log.lines.tip(SHIPLOG, ns, log.store.head(head))
        if tip.ulid is not None:
            log.clock_limit().check(SHIPLOG.option(ns), tip.ulid, tip.ulid)


def _make_note(
    output: bytes, keeping: str, note: Note, *, allow_secret: bool
) -> tuple[bytes | None, Withheld | None]:
    """Return the note to attach for the output, or None; and the reason if it was withheld."""
    if not output or keeping == "drop":
        return None, None
    # Sealed output may contain secrets.
    withheld = _withheld(output) if keeping == "keep" and not allow_secret else None
    if withheld is not None:
        return None, withheld
    try:
        return note(output), None
    except RopewalkError as error:
        return None, (f"{error.code}: {printable(error.detail)}", error.advice_now)


def _withheld(output: bytes) -> Withheld | None:
    """Return why the output may not be kept, and advice; None if it may be kept."""
    from ropewalk.gitlog.privacy.secrets import refuse_secrets

    try:
        refuse_secrets(output.decode("utf-8", "replace"), "the output")
    except Denied as error:
        found = error.fields["findings"]
        places = ", ".join(f"a {each['kind']} at {each['where']}" for each in found[:SHOWN_MAX])
        more = f" and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
        return f"it holds what looks like {places}{more}", WITHHELD_ADVICE
    return None


def _draft(
    log: GitRepository,
    argv: list[str],
    given: dict[str, str],
    code: int,
    started_ms: int,
    ended_ms: int,
    *,
    attached: bytes | None,
    repo_head: str | None,
    signals: Sequence[signal.Signals] = (),
) -> Draft:
    from ropewalk.gitlog.core.envelope import Draft
    from ropewalk.gitlog.core.notes import LOG_REF

    status = "success" if code == 0 else "failed"
    ran: dict[str, Any] = {
        "argv": argv,
        "cmd": shlex.join(argv),
        "exit_code": code,
        "duration_ms": ended_ms - started_ms,
        "host": socket.gethostname(),
        "log_attached": attached is not None,
    }
    if signals:
        ran["signals"] = [each.name for each in signals]
    document: dict[str, Any] = {"type": f"deployment.{status}", "payload": {"run": ran, **given}}
    if attached is not None:
        document["refs"] = {LOG_REF: content_id(attached)}  # a note can be replaced, an event cannot
    trailer = _trailer(log, given, status, started_ms, ended_ms)
    return Draft(document, trailer if repo_head is None else {**trailer, "repo_head": repo_head})


def _note(log: GitRepository, key: str | None) -> Note:
    """Return the function that makes the note: the output itself, or a pointer to sealed output."""
    from ropewalk.gitlog.compat.transfer import sealed_note

    return sealed_note(log, sealing_key(key), key, RUN_POLICY) if key is not None else lambda output: output


def _attach(log: GitRepository, receipt: Receipt, attached: bytes, now_ms: int) -> Withheld | None:
    """Attach a note to its event; if that fails, return the reason and advice: the event is recorded anyway."""
    from ropewalk.gitlog.core.notes import add_note

    try:
        add_note(log.store, LOG_NOTES, receipt.commit, attached, log.author(now_ms))
    except RopewalkError as error:
        return f"{error.code}: {printable(error.detail)}", error.advice_now
    return None


def _trailer(
    log: GitRepository, given: dict[str, str], status: str, started_ms: int, ended_ms: int
) -> dict[str, Any]:
    from ropewalk.gitlog.core.commit import rfc3339

    who = log.author(started_ms)
    groups = {
        "what": ("service", "artifact"),
        "where": ("region", "cluster", "namespace"),
        "why": ("reason", "ticket"),
        "how": ("pipeline", "run_url"),
    }
    trailer: dict[str, Any] = {
        "status": status,
        "who": {"name": who.name, "email": who.mail},
        "when": {
            "start_ts": rfc3339(started_ms),
            "end_ts": rfc3339(ended_ms),
            "dur_s": max(0, ended_ms - started_ms) / 1000,
        },
    }
    for group, names in groups.items():
        held = {name: given[name] for name in names if name in given}
        if held:
            trailer[group] = held
    if "env" in given:
        trailer["env"] = given["env"]
    return trailer


def scrub(argv: Sequence[str]) -> list[str]:
    """Return arguments with secrets replaced: values of secret options and variables, passwords in URLs, known tokens.

    >>> scrub(["deploy", "--token", "abc", "--db-password=x", "API_KEY=y", "https://me:pw@example.org/", "--tokens"])
    ['deploy', '--token', '[scrubbed]', '--db-password=[scrubbed]', 'API_KEY=[scrubbed]', \
'https://[scrubbed]@example.org/', '--tokens']
    """
    from ropewalk.gitlog.privacy.secrets import scan_text

    out: list[str] = []
    hide = False
    for each in argv:
        name, given, _ = each.partition("=")
        if hide and not each.startswith("-"):
            out.append(SCRUBBED)
        elif given and SECRET_NAME.search(name):
            out.append(f"{name}={SCRUBBED}")
        else:
            text = USER_INFO.sub(SCRUBBED, each)
            out.append(SCRUBBED if scan_text(text) else text)
        hide = not given and each.startswith("--") and SECRET_NAME.search(each) is not None
    return out


def work_tree_head() -> str | None:
    """Return the commit that is checked out around the current directory; None without one."""
    try:
        done = run_git(None, "rev-parse", "--verify", "--quiet", "HEAD")
    except Unavailable:
        return None
    found = done.stdout.decode("ascii", "replace").strip()
    return found if OBJECT_ID.fullmatch(found) else None
