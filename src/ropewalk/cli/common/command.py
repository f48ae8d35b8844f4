"""How every command behaves: data on stdout, talk on stderr, `--json` and `--repo` everywhere, one way to fail.

A command module makes its commands with `group()` and `command()` of this file and gets, without a word more:
`--json` and `--repo PATH` before or after the subcommand, and errors printed with code, reason and advice.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from ropewalk.errors import InvalidJson, NotFound, RopewalkError, Unavailable
from ropewalk.kernel.error_location import located
from ropewalk.kernel.terminal_text import printable

# How a step of a report is shown to people.
MARKS = {"passed": "✓", "failed": "✗", "not_checked": "–"}
INPUT_BYTES_MAX = 64 << 20  # one document on stdin or in a file; streams of documents use --jsonl
# What to do about a file system that says no; whatever is not here may pass by itself.
FILE_ADVICE = {
    errno.EACCES: "Check who may read and write it.",
    errno.EPERM: "Check who may read and write it.",
    errno.EROFS: "It can only be read; choose another place, or make it writable.",
    errno.ENOSPC: "Make room there, and run it again.",
    errno.EDQUOT: "Make room there, and run it again.",
    errno.EMFILE: "Too many files are open; raise the limit with `ulimit -n`.",
}
NAME_SHOWN_MAX = 200  # characters; whoever gave more will know them again
T = TypeVar("T")
E = TypeVar("E", bound=RopewalkError)


@dataclass(slots=True)
class Session:
    """What the user asked of every command: where, and in which form the answer goes."""

    repo: Path | None = None
    json: bool = False


def session() -> Session:
    """The session of the running command."""
    found = click.get_current_context().find_root().obj
    assert isinstance(found, Session)
    return found


def _set_json(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().ensure_object(Session).json = True


def _set_repo(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.find_root().ensure_object(Session).repo = Path(value)


def _shared_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--repo"],
            metavar="PATH",
            expose_value=False,
            callback=_set_repo,
            help="The repository; default: $ROPEWALK_REPO, else the one around the current directory.",
        ),
        click.Option(
            ["--json", "_json"],
            is_flag=True,
            expose_value=False,
            callback=_set_json,
            help="Answer as one JSON object.",
        ),
    ]


def _name_value(param: click.Parameter) -> None:
    """Show what an option takes by a word of ours, where it has none: NS or N say more than TEXT or INTEGER RANGE."""
    if not isinstance(param, click.Option) or param.metavar is not None or param.is_flag:
        return
    if isinstance(
        param.type, click.types.IntParamType | click.types.FloatParamType | click.IntRange | click.FloatRange
    ):
        param.metavar = "N"
    elif isinstance(param.type, click.types.StringParamType):
        param.metavar = max(param.opts, key=len).lstrip("-").upper()


class Command(click.Command):
    """A click command that also takes `--json` and `--repo`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for param in self.params:
            _name_value(param)
        self.params.extend(_shared_options())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Examples keep their lines: they are meant to be copied.
        if self.epilog:
            formatter.write_paragraph()
            for line in self.epilog.strip("\n").splitlines():
                formatter.write(line.rstrip() + "\n")


class Group(click.Group):
    """A click group whose commands are `Command`s and whose members may be imported on first use.

    `lazy` maps a name to (module, attribute, one line of help), so that `--help` and `--version` import nothing else.
    """

    command_class = Command
    group_class = type

    def __init__(
        self, *args: Any, lazy: dict[str, tuple[str, str, str]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}
        self.params.extend(_shared_options())

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self.lazy]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click would suggest none of the names that are imported on first use.
        if args[0].startswith("-") or self.get_command(ctx, args[0]) is not None or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from ropewalk.cli.common.suggest import meant

        like = meant(args[0], self.list_commands(ctx))
        raise click.UsageError(f"No such command {args[0]!r}.{f' {like}' if like else ''}", ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        from importlib import import_module

        module, attribute, _ = self.lazy[cmd_name]
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, help_line) for name, (_, _, help_line) in self.lazy.items()]
        for name in super().list_commands(ctx):
            known = super().get_command(ctx, name)
            if known is not None and not known.hidden:
                rows.append((name, known.get_short_help_str(160)))
        if len(rows) > len(self.lazy):  # which of them are imported late is nothing to people
            rows.sort()
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    format_epilog = Command.format_epilog


def emit(value: dict[str, Any], plain: str | Callable[[], str]) -> None:
    """Print the answer: the object with `--json`, else the text (made only when it is wanted)."""
    if session().json:
        emit_line(value)
    else:
        click.echo(plain if isinstance(plain, str) else plain())


def emit_line(value: dict[str, Any]) -> None:
    """Print one JSON object on a line of its own, now: a reader at the other end of a pipe waits for it."""
    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    sys.stdout.flush()


def answer_line(value: dict[str, Any], plain: str) -> None:
    """Print one answer of many, now, as JSON or plainly.

    A reader that has gone (`| head`) ends the answers, not the work: what is still to come must be recorded.
    """
    try:
        if session().json:
            emit_line(value)
        else:
            click.echo(plain)
            sys.stdout.flush()
    except BrokenPipeError:
        drop_output(sys.stdout)


def say(text: str) -> None:
    """Talk to the person: stderr, never mixed with data."""
    # Errors are said after click's context, which knows of NO_COLOR, has gone.
    click.echo(text, err=True, color=False if os.environ.get("NO_COLOR") else None)


def fail(error: RopewalkError, *, as_json: bool) -> int:
    """Print an error the one way errors are printed and return its exit code.

    Where stdout takes nothing (its disk is full, its reader has gone), the error is told on stderr; where that takes
    nothing either, the exit code has to do.
    """
    if as_json:
        try:
            emit_line(error.to_problem())
            return error.exit_code
        except OSError:
            drop_output(sys.stdout)
    try:
        say(f"{click.style('error', fg='red', bold=True)}  {error.code}: {printable(error.detail)}")
        if error.advice_now:
            say(f"       {error.advice_now}")
    except OSError:
        drop_output(sys.stderr)
    return error.exit_code


def drop_output(stream: IO[str]) -> None:
    """Nobody takes what this stream says: nothing is left to say, and Python must not say it at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def read_input(name: str, *, limit: int = INPUT_BYTES_MAX) -> bytes:
    """The bytes of a file, or of stdin for `-`, refused beyond `limit`."""
    from ropewalk.errors import TooLarge

    try:
        with _open_input(name) as stream:
            raw = stream.read(limit + 1)
    except OSError as error:
        raise refusal_of(error, name) from error
    if len(raw) > limit:
        raise TooLarge(f"{name} is larger than {limit} bytes", limit=limit, name=name)
    return raw


def parse_input(name: str, parse: Callable[[bytes], T], *, limit: int = INPUT_BYTES_MAX) -> T:
    """What the bytes of a file, or of stdin for `-`, mean. If they mean nothing, the error names the file."""
    raw = read_input(name, limit=limit)
    with located("stdin" if name == "-" else name):
        try:
            return parse(raw)
        except InvalidJson as error:
            if error.fields.get("reason") == "trailing bytes" and _could_be_lines(name):
                error.advice_now = "If it holds one a line, add --jsonl."
            raise


def _could_be_lines(name: str) -> bool:
    """Whether the command would have taken that file line by line, and was not told to."""
    context = click.get_current_context(silent=True)
    given = context.params if context is not None else {}
    return given.get("jsonl") is False and given.get("file") == name


def refusal_of(error: OSError, name: str | None = None) -> RopewalkError:
    """What the file system said, as an error of ours: a wrong name is one thing, a disk that fails another."""
    name = name or (os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None)
    if name is None and isinstance(error, FileNotFoundError):
        from ropewalk.disk.repository_paths import absolute

        try:
            absolute(Path())
        except NotFound as gone:
            return gone
    if name is not None and len(name) > NAME_SHOWN_MAX:
        name = name[:NAME_SHOWN_MAX] + "…"
    if name is not None and isinstance(error, FileNotFoundError):
        return NotFound(f"no file {name}", name=name)
    if name is not None and isinstance(error, IsADirectoryError):
        return NotFound(f"{name} is a directory, not a file", name=name)
    detail = error.strerror or str(error)
    impossible = (errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR)
    if name is not None and error.errno in impossible:  # nothing can be there, now or later
        return NotFound(f"{name}: {detail}", name=name)
    known = {"name": name} if name is not None else {}
    advice = FILE_ADVICE.get(error.errno or 0)
    return Unavailable(f"{name}: {detail}" if name is not None else detail, advice=advice, **known)


def _open_input(name: str) -> IO[bytes]:
    if name == "-":
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return Path(name).open("rb")


def write_output(name: str, raw: bytes) -> None:
    """Write a whole file or nothing: the bytes go beside it first and are moved into place.

    What is no file (a pipe, `/dev/null`) cannot be replaced and is written to; a link stays a link.
    """
    if name == "-":
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()
        return
    try:
        target = Path(os.path.realpath(name))
        if target.exists() and not target.is_file() and not target.is_dir():
            with target.open("wb") as stream:
                stream.write(raw)
            return
        _replace(target, raw)
    except FileNotFoundError as error:
        raise NotFound(
            f"no folder for {name}", name=name, advice="Make the folder first, or name another."
        ) from error
    except OSError as error:
        raise refusal_of(error, name) from error


def _replace(target: Path, raw: bytes) -> None:
    from ropewalk.disk.durable import sync

    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as stream:
            stream.write(raw)
            stream.flush()
            sync(stream.fileno())
        beside.replace(target)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def progress(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Hand on the items; on a terminal, with a bar on stderr."""
    if not sys.stderr.isatty() or session().json:
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description=label, total=total, console=Console(stderr=True), transient=True)


@contextmanager
def counting(label: str, what: str) -> Iterator[Callable[[int], None]]:
    """For work whose end nobody knows: a function to tell how far it has got; on a terminal, shown on stderr."""
    if not sys.stderr.isatty() or session().json:
        yield lambda _count: None
        return
    from rich.console import Console

    with Console(stderr=True).status(label) as status:
        yield lambda count: status.update(f"{label} {count:,} {what}")
