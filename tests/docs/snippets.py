"""Run what the documentation shows: console blocks line by line, Python blocks in one namespace per page.

    ```console
    $ ropewalk hash event.json             a command, run by bash; `> ` lines after it continue it
    blake3:2a6c…                           what it prints; `…` stands for anything within a line,
    …                                      and alone on a line for any number of lines
    $ ropewalk verify torn.git  # exits 5  a command that is meant to fail says so
    ```

A page is run from top to bottom in a fresh directory, by one bash and one Python, so that files, variables and `cd`
carry on. `<!-- not run: reason -->` before a block leaves it out; the reason is required.
`python -m tests.docs.snippets [PAGE…]` runs pages by hand and says what was left out.
"""

from __future__ import annotations

import contextlib
import difflib
import doctest
import io
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Block", "Broken", "Outcome", "Page", "Step", "matches", "pages", "run_page"]

ROOT = Path(__file__).resolve().parents[2]
STEP_SECONDS_MAX = 180.0

RUN = ("console", "python")
# Fences that would slip past the runner although they hold commands or Python.
DISGUISED = {
    "bash": "console",
    "sh": "console",
    "shell": "console",
    "zsh": "console",
    "shell-session": "console",
    "py": "python",
    "pycon": "python",
}
FENCE = re.compile(r"^(?P<indent>\s*)(?P<ticks>`{3,}|~{3,})\s*(?P<kind>[\w-]*)")
NOT_RUN = re.compile(r"<!--\s*not run\b:?(?P<reason>.*?)-->", re.DOTALL)
EXITS = re.compile(r"\s+# exits (?P<code>\d+)$")
# Installing and building belong to `make`, and nothing here may reach the network: $API is a server of the page.
OUTWARD = re.compile(
    r"^(make\b|(python3? -m )?pip3? install\b|pipx\b|uv\b|curl\b(?!.*\$API/)|wget\b|apt\b|apt-get\b|brew\b|npm\b|npx\b"
    r"|git (clone|fetch|push|pull|ls-remote)\b.*(https?://|ssh://|git://|git@))"
)


class Broken(Exception):
    """A page that cannot be run as it is written; carries the line."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block that is meant to run, or says why it is not."""

    kind: str
    line: int  # of the opening fence
    lines: tuple[str, ...]
    not_run: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a console block, and what it should print."""

    line: int
    command: str
    expected: tuple[str, ...]
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """A page and its name, as it is reported."""

    name: str
    text: str

    def blocks(self) -> list[Block]:
        """The blocks of the page, in order."""
        return list(_blocks(self.text))


@dataclass(slots=True)
class Outcome:
    """What running a page came to."""

    commands: int = 0
    python_blocks: int = 0
    not_run: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def pages() -> list[Page]:
    """Every page that is run: the front pages and all of docs/."""
    written = (
        ROOT / "docs" / "reference" / "python.md"
    )  # from docstrings, whose examples pytest runs where they are
    guides = sorted(set((ROOT / "docs").rglob("*.md")) - {written})
    found = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *guides]
    return [
        Page(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
        for path in found
        if path.is_file()
    ]


def _blocks(text: str) -> Iterator[Block]:
    lines = text.splitlines()
    before: list[str] = []  # the paragraph just above, where a comment may stand
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if opening is None:
            before = [*before, lines[number]] if lines[number].strip() else _kept(before)
            number += 1
            continue
        start, ticks, indent = number, opening["ticks"], opening["indent"]
        number += 1
        body: list[str] = []
        while number < len(lines) and not _closes(lines[number], ticks):
            body.append(lines[number].removeprefix(indent))
            number += 1
        if number == len(lines):
            raise Broken(start + 1, "the block is never closed")
        number += 1
        reason = _reason(before, start + 1)
        kind, before = opening["kind"].lower(), []
        if kind in DISGUISED and reason is None:
            raise Broken(start + 1, f"write ```{DISGUISED[kind]} instead of ```{kind}, so that it is run")
        if kind in RUN or kind in DISGUISED:
            yield Block(DISGUISED.get(kind, kind), start + 1, tuple(body), reason)


def _kept(before: list[str]) -> list[str]:
    # A blank line ends a paragraph, but a comment may be parted from its block by one.
    return before if before and before[-1].rstrip().endswith("-->") else []


def _closes(line: str, ticks: str) -> bool:
    bare = line.strip()
    return len(bare) >= len(ticks) and set(bare) == {ticks[0]}


def _reason(before: list[str], line: int) -> str | None:
    comment = NOT_RUN.search("\n".join(before))
    if comment is None or not "\n".join(before).rstrip().endswith(comment[0]):
        return None
    reason = " ".join(comment["reason"].split())
    if not reason:
        raise Broken(line, "not run, but no reason: write <!-- not run: reason -->")
    return reason


def steps(block: Block) -> list[Step]:
    """The commands of a console block."""
    found: list[Step] = []
    number = 0
    while number < len(block.lines):
        line = block.lines[number]
        at = block.line + 1 + number
        if not line.startswith("$ "):
            if line.strip():
                raise Broken(at, f"output before any command: {line!r}; a command starts with '$ '")
            number += 1
            continue
        command = [line[2:]]
        number += 1
        while number < len(block.lines) and re.match(r">( |$)", block.lines[number]):
            command.append(block.lines[number][2:])
            number += 1
        expected: list[str] = []
        while number < len(block.lines) and not block.lines[number].startswith("$ "):
            expected.append(block.lines[number].rstrip())
            number += 1
        while expected and not expected[-1]:
            expected.pop()
        exits = EXITS.search(command[0])
        command[0] = EXITS.sub("", command[0])
        if OUTWARD.match(command[0]):
            raise Broken(
                at, f"{command[0]!r} installs or reaches out; put <!-- not run: reason --> before the block"
            )
        found.append(Step(at, "\n".join(command), tuple(expected), int(exits["code"]) if exits else 0))
    if not found:
        raise Broken(block.line, "a console block without a command; write ```text")
    return found


def matches(expected: Sequence[str], printed: str) -> bool:
    """Does the output fit? `…` is anything within a line; a line of only `…` is any number of lines.

    >>> matches(["ok  …"], "ok  01HF\\n"), matches(["a", "…", "d"], "a\\nb\\nc\\nd\\n"), matches(["a"], "b\\n")
    (True, True, False)
    """
    pattern = "".join(
        r"(?:[^\n]*\n)*" if line.strip() == "…" else re.escape(line).replace("…", r"[^\n]*") + r"[ \t]*\n"
        for line in expected
    )
    text = printed.rstrip()
    return re.fullmatch(pattern, text + "\n" if text else "") is not None


def _difference(expected: Sequence[str], printed: str) -> str:
    shown = difflib.unified_diff(
        list(expected), printed.rstrip().splitlines(), "the page says", "it printed", lineterm="", n=2
    )
    return "\n".join(f"    {line}" for line in shown)


def _environment(folder: Path) -> dict[str, str]:
    """Only what a page may lean on: ropewalk first on PATH, a home of its own, no colours, no network."""
    home = folder / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[user]\n\tname = Ada\n\temail = ada@example.test\n[init]\n\tdefaultBranch = main\n", encoding="utf-8"
    )
    own = ROOT / ".venv" / "bin"
    first = own if own.is_dir() else Path(sys.executable).parent
    nowhere = "http://127.0.0.1:9"  # the discard port: whoever goes through a proxy is refused at once
    kept = {
        name: os.environ[name]
        for name in ("JAVA_HOME", "PYTHONPATH", "TMPDIR", "ROPEWALK_CACHE")
        if name in os.environ
    }
    return {
        **kept,
        "PATH": f"{first}:{os.environ.get('PATH', os.defpath)}",
        "HOME": str(home),
        "CHECKOUT": str(ROOT),  # for files that no package installs, such as the JavaScript client
        "ROPEWALK_CONFIG": str(home / "ropewalk"),
        "GIT_CEILING_DIRECTORIES": str(folder),
        "GIT_TERMINAL_PROMPT": "0",
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",  # keeps stdout and stderr in the order they were written
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "COLUMNS": "110",
        "PIP_NO_INDEX": "1",
        "http_proxy": nowhere,
        "https_proxy": nowhere,
        "HTTPS_PROXY": nowhere,
        "no_proxy": "127.0.0.1,localhost",
    }


class _Peer:
    """A child that takes one line and answers one line, until a deadline."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )

    def ask(self, question: str, seconds: float) -> str | None:
        """The answer; empty if the child has ended, None if it said nothing in time."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(question.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return ""
        answer, until = b"", time.monotonic() + seconds
        descriptor = self.process.stdout.fileno()
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                break
            answer += piece
        return answer.decode()

    def end(self) -> int:
        """End the child and whatever it left running in the background."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(ProcessLookupError):
            # The session is ours alone, so the group holds only what the page started.
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait()


class _Stage:
    """Where one page plays: a directory, a bash and a Python, each started when first needed."""

    def __init__(self, folder: Path, seconds: float, forked: bool) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.outputs = folder / "outputs"
        self.outputs.mkdir()
        self.environment = _environment(folder)
        if forked:
            from tests.forking import client  # not for the child, which has no path to it

            self.environment["PATH"] = f"{client().parent}:{self.environment['PATH']}"
        self.seconds = seconds
        self.bash: _Peer | None = None
        self.python: _Peer | None = None

    def run(self, step: Step, count: int) -> tuple[int | None, str]:
        """Exit code (None: not in time) and output of one command."""
        if self.bash is None:
            self.bash = _Peer(["bash", "--noprofile", "--norc"], self.folder, self.environment)
        # Output goes to a file, so that a server left in the background does not hold a pipe open.
        output = self.outputs / str(count)
        answer = self.bash.ask(
            f"eval {shlex.quote(step.command)} </dev/null >{shlex.quote(str(output))} 2>&1; printf '%d\\n' $?",
            self.seconds,
        )
        printed = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
        if answer is None:
            self.bash.end()
            return None, printed
        if not answer:
            code = self.bash.process.wait()
            self.bash.end()
            self.bash = None
            return code, printed
        return int(answer), printed

    def execute(self, block: Block, name: str) -> str | None:
        """Run a Python block; what went wrong, if anything did."""
        if self.python is None:
            child = [sys.executable, "-P", str(Path(__file__).resolve()), "--child"]
            self.python = _Peer(child, self.folder, self.environment)
        question = {"source": "\n".join(block.lines) + "\n", "name": name, "line": block.line}
        answer = self.python.ask(json.dumps(question), self.seconds)
        if answer is None:
            return f"not done after {self.seconds:g} s"
        if not answer:
            return "the Python process ended"
        wrong: str | None = json.loads(answer)["wrong"]
        return wrong

    def clear(self) -> None:
        for peer in (self.bash, self.python):
            if peer is not None:
                peer.end()


def run_page(
    page: Page,
    folder: Path,
    seconds: float = STEP_SECONDS_MAX,
    forked: bool = False,
    programs: Path | None = None,
) -> Outcome:
    """Run a page in an empty directory; `forked` commands are not started but forked (tests/forking.py).

    Commands come from the folder `programs` where one is named.
    """
    outcome = Outcome()
    stage = _Stage(folder, seconds, forked)
    if programs is not None:
        stage.environment["PATH"] = f"{programs}:{stage.environment['PATH']}"
    try:
        for block in page.blocks():
            if block.not_run is not None:
                outcome.not_run.append(f"{page.name}:{block.line}: {block.not_run}")
            elif block.kind == "console":
                for step in steps(block):
                    outcome.commands += 1
                    code, printed = stage.run(step, outcome.commands)
                    outcome.failures += _judge(page.name, step, code, printed, seconds)
                    if code is None:
                        return outcome
            else:
                outcome.python_blocks += 1
                wrong = stage.execute(block, page.name)
                if wrong is not None:
                    outcome.failures.append(f"{page.name}:{block.line}: Python block\n{wrong}")
    except Broken as broken:
        outcome.failures.append(f"{page.name}:{broken.line}: {broken}")
    finally:
        stage.clear()
    return outcome


def _judge(name: str, step: Step, code: int | None, printed: str, seconds: float) -> Iterator[str]:
    here = f"{name}:{step.line}: $ {step.command}"
    if code is None:
        yield f"{here}\n    not done after {seconds:g} s; it printed:\n{printed}"
        return
    if code != step.exit_code:
        yield f"{here}\n    exits {code}, not {step.exit_code}; it printed:\n{printed}"
    if not matches(step.expected, printed):
        yield f"{here}\n{_difference(step.expected, printed)}"


# The child that runs Python blocks.


class _Checker(doctest.OutputChecker):
    """Doctest's comparison, with `…` as on the rest of the page."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(want, got, optionflags) or matches(want.splitlines(), got)


def _run_python(source: str, name: str, line: int, namespace: dict[str, Any]) -> str | None:
    if ">>>" in source:
        test = doctest.DocTestParser().get_doctest(source, namespace, name, name, line)
        report = io.StringIO()
        runner = doctest.DocTestRunner(_Checker(), verbose=False, optionflags=doctest.ELLIPSIS)
        runner.run(test, out=report.write, clear_globs=False)
        namespace.update(test.globs)
        return report.getvalue() or None
    try:
        # Blank lines in front make the numbers in a traceback those of the page.
        exec(compile("\n" * line + source, name, "exec"), namespace)
    except BaseException:
        kind, error, trace = sys.exc_info()
        return "".join(traceback.format_exception(kind, error, trace and trace.tb_next))
    return None


def _child() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for question in sys.stdin:
        asked = json.loads(question)
        with contextlib.redirect_stdout(io.StringIO()):
            wrong = _run_python(asked["source"], asked["name"], asked["line"], namespace)
        answers.write(json.dumps({"wrong": wrong}) + "\n")
        answers.flush()


def _main(names: list[str]) -> int:
    chosen = [page for page in pages() if not names or page.name in names]
    failed = 0
    for page in chosen:
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_page(page, Path(folder))
        counted = f"{outcome.commands} commands, {outcome.python_blocks} Python blocks"
        print(f"{page.name}: {counted}, {len(outcome.not_run)} not run")
        for line in [*outcome.not_run, *outcome.failures]:
            print(f"  {line}")
        failed += len(outcome.failures)
    return 5 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--child"]:
        _child()
    else:
        sys.exit(_main(sys.argv[1:]))
