"""Behaviour shared by all commands: data on stdout, messages on stderr, one way to print errors.

`Command` and `Group` accept `--json` and `--repo PATH` before or after the subcommand.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import click

from ropewalk.errors import InvalidJson, NotFound, RopewalkError, TooLarge, Unavailable, located
from ropewalk.kernel.terminal_text import printable

# How a step of a report is shown to people.
MARKS = {"passed": "✓", "failed": "✗", "not_checked": "–"}
INPUT_BYTES_MAX = 64 << 20  # one document on stdin or in a file; streams of documents use --jsonl
# Advice per file system error; errors not listed here may be temporary.
FILE_ADVICE = {
    errno.EACCES: "Check its owner and mode.",
    errno.EPERM: "Check its owner and mode.",
    errno.EROFS: "The file system is read-only; choose another place, or make it writable.",
    errno.ENOSPC: "Free some disk space, then run the command again.",
    errno.EDQUOT: "Free some disk space, then run the command again.",
    errno.EMFILE: "Too many files are open; raise the limit with `ulimit -n`.",
}
NAME_SHOWN_MAX = 200  # characters of a file name in an error
T = TypeVar("T")
MakesCommand = Callable[[Callable[..., Any]], click.Command]
FILE_WORDS = {"F", "FILE", "PATH", "DIR", "FOLDER", "REPO", "PEM", "CHECKPOINT"}  # placeholders of files
MakesGroup = Callable[[Callable[..., Any]], "Group"]


@dataclass(slots=True)
class Session:
    """Options that every command takes: the repository and the output format."""

    repo: Path | None = None
    json: bool = False
    debug: bool = False
    passphrase_file: str | None = None


def session() -> Session:
    """Return the options of the running command."""
    found = click.get_current_context().find_root().obj
    assert isinstance(found, Session)
    return found


def _set(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Store a shared option in the session; a later one replaces an earlier one."""
    if value:
        setattr(ctx.find_root().ensure_object(Session), param.name or "", value)


def _shared_options() -> list[click.Parameter]:
    shared = partial(click.Option, expose_value=False, callback=_set)
    repo = "Repository to use (default: $ROPEWALK_REPO, else the one around the current directory)."
    return [
        shared(["--repo"], metavar="PATH", type=click.Path(path_type=Path), help=repo),
        shared(["--json"], is_flag=True, help="Print the result as one JSON object."),
        shared(["--passphrase-file"], metavar="F", help="File with the passphrase of the key that is used."),
        shared(["--debug"], is_flag=True, help="Print a traceback with every error."),
    ]


def _name_value(param: click.Option) -> None:
    """Set the placeholder of an option that has none: NS or N instead of TEXT or INTEGER RANGE."""
    if param.metavar is not None or param.is_flag:
        return
    if isinstance(param.type, click.types.IntParamType | click.types.FloatParamType):  # ranges too
        param.metavar = "N"
    elif isinstance(param.type, click.types.StringParamType):
        param.metavar = max(param.opts, key=len).lstrip("-").upper()


def _show_default(param: click.Option) -> None:
    """Show the default value, unless it is empty or the help text names it."""
    if not param.is_flag and isinstance(param.default, str | int | float) and param.default != "":
        param.show_default = "default" not in (param.help or "").lower()


def _complete(param: click.Parameter) -> None:
    """Complete values that name a log, a channel, a consumer group, a key or a file."""
    if FILE_WORDS & set(re.findall(r"\w+", param.metavar or "")):
        param._custom_shell_complete = click.Path().shell_complete
    elif {"--ns", "--topic", "--channel", "--group", "--key"} & set(param.opts):

        def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
            from ropewalk.cli.common.complete_values import complete_value

            return complete_value(ctx, param, incomplete)

        param._custom_shell_complete = complete


@contextmanager
def _suggesting_options(command: click.Command, args: list[str]) -> Iterator[None]:
    """Name similar options where one does not exist: also for `-json`, and for options before a subcommand."""
    try:
        yield
    except click.NoSuchOption as error:
        from ropewalk.cli.common.suggest import did_you_mean

        typed = error.option_name
        if not typed.startswith("--"):  # click has read `-json` as `-j -s -o -n`
            typed = next((f"-{each}" for each in args if each.startswith(typed)), typed)
        like = did_you_mean(typed, (each for param in command.params for each in param.opts))
        if like is None and isinstance(command, click.Group):
            like = "Options of a command follow its name."
        raise click.UsageError(" ".join(filter(None, (error.message, like))), error.ctx) from None


class Command(click.Command):
    """A click command that also takes `--json` and `--repo`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for param in self.params:
            if isinstance(param, click.Option):
                _name_value(param)
                _show_default(param)
            _complete(param)
        self.params.extend(_shared_options())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _suggesting_options(self, list(args)):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NotFound as error:
            from ropewalk.cli.common.complete_values import suggest_existing

            error.advice_now = suggest_existing(ctx, error) or error.advice_now
            raise

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Keep the line breaks of examples.
        if self.epilog:
            formatter.write_paragraph()
            for line in self.epilog.strip("\n").splitlines():
                formatter.write(line.rstrip() + "\n")


class Group(click.Group):
    """A click group whose commands are `Command`s and whose members may be imported on first use.

    `lazy` maps a name to "module:attribute one line of help" below `ropewalk.cli`: `--help` imports nothing else.
    `sections` maps a heading of `--help` to the names listed below it; names in no section come last.
    """

    command_class = Command
    group_class = type

    def __init__(
        self,
        *args: Any,
        lazy: dict[str, str] | None = None,
        sections: dict[str, tuple[str, ...]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}
        self.sections = sections or {}
        self.params.extend(_shared_options())

    def command(self, name: str, *examples: str, **more: Any) -> MakesCommand:  # type: ignore[override]
        """Return a decorator for a command of this group; `examples` are the lines that end its help."""
        return super().command(name, epilog=_examples(examples), **more)

    def group(self, name: str, *examples: str, **more: Any) -> MakesGroup:  # type: ignore[override]
        """Return a decorator for a group in this group."""
        return cast("MakesGroup", super().group(name, epilog=_examples(examples), **more))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _suggesting_options(self, list(args)):
            return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = [*super().list_commands(ctx), *self.lazy]
        known = [name for section in self.sections.values() for name in section if name in names]
        return [*known, *(name for name in names if name not in known)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click does not suggest names that are imported on first use.
        if args[0].startswith("-") or self.get_command(ctx, args[0]) is not None or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from ropewalk.cli.common.suggest import did_you_mean, similar_commands

        options = ["--help", "--version"] if args[0] in ("help", "version") else []
        like = did_you_mean(args[0], [*options, *self.list_commands(ctx)], similar_commands)
        raise click.UsageError(f"No such command {args[0]!r}.{f' {like}' if like else ''}", ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        from importlib import import_module

        module, attribute = self.lazy[cmd_name].split()[0].split(":")
        found: click.Command = getattr(import_module(f"ropewalk.cli.{module}"), attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {name: line.partition(" ")[2] for name, line in self.lazy.items()}
        for name in super().list_commands(ctx):
            known = super().get_command(ctx, name)
            if known is not None and not known.hidden:
                rows[name] = known.get_short_help_str(160)
        for heading, names in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name, rows.pop(name)) for name in names if name in rows])
        if rows:
            with formatter.section("Other commands" if self.sections else "Commands"):
                formatter.write_dl(sorted(rows.items()))

    format_epilog = Command.format_epilog


def _examples(lines: Iterable[str]) -> str:
    return "Examples:\n" + "".join(f"  {line}\n" for line in lines)


def command(name: str, *examples: str, **more: Any) -> MakesCommand:
    """Return a decorator for a command that its group imports on first use."""
    return click.command(name, cls=Command, epilog=_examples(examples), **more)


def group(name: str, *examples: str, **more: Any) -> MakesGroup:
    """Return a decorator for a group of commands."""
    return click.group(name, cls=Group, epilog=_examples(examples), **more)


def emit(value: dict[str, Any], plain: str | Iterable[str] | Callable[[], str], empty: str = "") -> None:
    """Print the result: the object with `--json`, else the text, or the lines of an iterable (`empty` if none)."""
    if session().json:
        return emit_line(value)
    if callable(plain):
        plain = plain()
    return click.echo(plain if isinstance(plain, str) else "\n".join(plain) or empty)


def emit_line(value: dict[str, Any]) -> None:
    """Print one JSON object as a line and flush it, so that a reader of the pipe gets it at once."""
    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    sys.stdout.flush()


def answer_line(value: dict[str, Any], plain: str) -> None:
    """Print one result of many and flush it.

    If the reader has closed the pipe (`| head`), drop the output and continue: later items must still be recorded.
    """
    try:
        emit(value, plain)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output(sys.stdout)


def say(text: str) -> None:
    """Print a message for people on stderr."""
    # Errors are printed outside click's context, which would handle NO_COLOR.
    click.echo(text, err=True, color=False if os.environ.get("NO_COLOR") else None)


def fail(error: RopewalkError, *, as_json: bool) -> int:
    """Print an error with its code and advice, and return its exit code.

    If stdout cannot be written (full disk, closed pipe), print to stderr; if that fails too, only return the code.
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
    """Redirect a stream to the null device, so that Python does not fail to flush it at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def read_input(name: str, *, limit: int = INPUT_BYTES_MAX) -> bytes:
    """Return the bytes of a file, or of stdin for `-`; raise TooLarge above `limit` bytes."""
    with reading_input(name) as stream:
        raw = stream.read(limit + 1)
    if len(raw) > limit:
        raise TooLarge(f"{name} must have at most {limit} bytes, and is larger", limit=limit, name=name)
    return raw


def parse_input(name: str, parse: Callable[[bytes], T], *, limit: int = INPUT_BYTES_MAX) -> T:
    """Return the parsed content of a file, or of stdin for `-`. Parse errors name the file."""
    raw = read_input(name, limit=limit)
    with located("stdin" if name == "-" else name):
        try:
            return parse(raw)
        except InvalidJson as error:
            if error.fields.get("reason") == "trailing bytes" and _could_be_lines(name):
                error.advice_now = "If the file holds one document per line, add --jsonl."
            raise


def _could_be_lines(name: str) -> bool:
    """Return whether the command takes this file line by line with --jsonl, which was not given."""
    context = click.get_current_context(silent=True)
    given = context.params if context is not None else {}
    return given.get("jsonl") is False and given.get("file") == name


def from_os_error(error: OSError, name: str | None = None) -> RopewalkError:
    """Return an OSError as one of our errors: NotFound for a wrong name, Unavailable for other failures."""
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
        return NotFound(f"{name} is a directory, not a file", name=name, advice="Name a file in it.")
    detail = error.strerror or str(error)
    impossible = (errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR)
    if name is not None and error.errno in impossible:  # a file cannot exist under such a name
        return NotFound(f"{name}: {detail}", name=name)
    known = {"name": name} if name is not None else {}
    advice = FILE_ADVICE.get(error.errno or 0)
    return Unavailable(f"{name}: {detail}" if name is not None else detail, advice=advice, **known)


@contextmanager
def reading_input(name: str) -> Iterator[IO[bytes]]:
    """Open a file, or stdin for `-`. Errors of the file system within become errors of ours that name the file."""
    try:
        with open(sys.stdin.fileno() if name == "-" else name, "rb", closefd=name != "-") as stream:
            yield stream
    except OSError as error:
        raise from_os_error(error, name) from error


def write_result(name: str, raw: bytes, value: dict[str, Any], plain: str) -> None:
    """Write one document: as a line on stdout for `-`, else to a file; then print where it is."""
    write_output(name, raw + b"\n" if name == "-" else raw)
    if name != "-":
        emit(value, plain)


def write_output(name: str, raw: bytes) -> None:
    """Write a file atomically: write a temporary file in the same folder, then rename it.

    Pipes and devices (`/dev/null`) are written directly; a symbolic link stays a link.
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
            f"the folder of {name} does not exist",
            name=name,
            advice="Create the folder first, or name another file.",
        ) from error
    except OSError as error:
        raise from_os_error(error, name) from error


def _replace(target: Path, raw: bytes) -> None:
    from ropewalk.disk.durable import sync

    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(raw)
            stream.flush()
            sync(stream.fileno())
        temporary.replace(target)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def progress(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Yield the items; on a terminal, show a progress bar on stderr."""
    if not sys.stderr.isatty() or session().json:
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, description=label, total=total, console=Console(stderr=True), transient=True)


@contextmanager
def counting(label: str, what: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes a count; on a terminal, show the count on stderr."""
    if not sys.stderr.isatty() or session().json:
        yield lambda _count: None
        return
    from rich.console import Console

    with Console(stderr=True).status(label) as status:
        yield lambda count: status.update(f"{label} {count:,} {what}")
