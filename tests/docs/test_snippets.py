"""Every page does what it says, and the runner notices when a page does not."""

from __future__ import annotations

import itertools
import os
import re
import textwrap
from collections import Counter

import pytest

from tests.docs.snippets import Broken, Outcome, Page, matches, pages, run_page, steps
from tests.tools import needs
from tests.waiting import LIMIT_S

PAGES = pages()
STARTED = {"README.md"}  # its commands are started; those of other pages are forked
LONG = ("audit", "keys", "ledger", "lifecycle", "operate", "remote-ledger")
MARKS: dict[str, pytest.MarkDecorator | tuple[pytest.MarkDecorator, ...]] = {
    **{f"docs/guide/{name}.md": pytest.mark.slow for name in LONG},
    "docs/guide/spark.md": pytest.mark.slow,  # starts a JVM for each command
    "docs/start/data-engineer.md": pytest.mark.slow,
    "docs/guide/brokers.md": (pytest.mark.slow, needs("nats-server", "redis-server")),
    "docs/guide/javascript.md": needs("node"),
    "docs/start/web-developer.md": needs("node"),
}


@pytest.mark.timeout(900)  # a page may hold many commands; each has its own limit
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name, marks=MARKS.get(page.name, ())) for page in PAGES],
)
def test_the_page_does_what_it_says(page, tmp_path, record_property):
    outcome = run_page(page, tmp_path, forked=page.name not in STARTED)
    record_property("not_run", len(outcome.not_run))
    assert not outcome.failures, "\n\n".join(["", *outcome.failures])


def test_the_front_page_is_among_the_pages():
    assert "README.md" in [page.name for page in PAGES]


# The runner itself, on small pages.


@pytest.fixture
def run(tmp_path):
    number = itertools.count()

    def run(text: str, seconds: float = LIMIT_S) -> Outcome:
        folder = tmp_path / str(next(number))
        folder.mkdir()
        return run_page(Page("page.md", textwrap.dedent(text)), folder, seconds)

    return run


def test_a_true_page_passes(run):
    outcome = run("""
        ```console
        $ echo '{"a":1}' > f.json; cat f.json
        {"a":1}

        $ printf 'one\\ntwo\\nthree\\n'
        one
        …
        $ echo ok 12345
        ok …
        $ true
        ```
    """)
    assert outcome == Outcome(commands=4)


def test_files_variables_and_directory_carry_on_within_a_page(run):
    outcome = run("""
        ```console
        $ mkdir inner && cd inner && export A=1 && b=2
        $ sleep 100 & echo started
        started
        ```
        Words between.
        ```console
        $ echo $A $b $(basename $PWD)
        1 2 inner
        $ kill $!
        ```
    """)
    assert outcome == Outcome(commands=4)


def test_a_command_left_in_the_background_does_not_outlive_its_page(run, tmp_path):
    os.mkfifo(tmp_path / "held")
    reader = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    outcome = run("""
        ```console
        $ sleep 1000 > ../../held &
        $ echo held > ../../held
        ```
    """)
    assert outcome.failures == []
    os.set_blocking(reader, True)
    assert os.read(reader, 5) == b"held\n"
    assert os.read(reader, 1) == b""  # waits until nobody holds the other end
    os.close(reader)


def test_a_page_has_a_home_and_a_path_of_its_own(run, tmp_path):
    outcome = run(f"""
        ```console
        $ echo $HOME; echo $ROPEWALK_CONFIG; echo $NO_COLOR; pwd
        {tmp_path}/0/home
        {tmp_path}/0/home/ropewalk
        1
        {tmp_path}/0/work
        $ ropewalk --version
        ropewalk …
        ```
    """)
    assert outcome == Outcome(commands=2)


def test_other_output_is_shown_as_a_difference_with_its_place(run):
    outcome = run("""\
        # Title

        ```console
        $ echo one
        one
        $ echo two
        three
        ```
    """)
    (failure,) = outcome.failures
    assert failure.startswith("page.md:6: $ echo two\n")
    assert "-three" in failure and "+two" in failure


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("$ echo unannounced", "+unannounced"),
        ("$ true\nnever printed", "-never printed"),
        ("$ exit_is() { return 5; }; exit_is", "exits 5, not 0"),
        ("$ true  # exits 5", "exits 0, not 5"),
        ("$ no-such-command", "exits 127, not 0"),
        ("$ if", "exits 2, not 0"),
        ("$ exit 3", "exits 3, not 0"),
        ("$ make test", "installs or reaches out"),
        ("$ pip install ropewalk", "installs or reaches out"),
        ("$ git clone https://example.test/x.git", "installs or reaches out"),
        ("words\n$ true", "output before any command"),
        ("", "without a command"),
    ],
)
def test_a_false_console_block_is_refused(run, lines, complaint):
    outcome = run(f"```console\n{lines}\n```\n")
    assert complaint in outcome.failures[0]


def test_a_command_that_is_meant_to_fail_says_so(run):
    assert run("```console\n$ (echo bad; exit 5)  # exits 5\nbad\n```\n").failures == []


def test_stdout_and_stderr_are_both_on_the_page(run):
    assert run("```console\n$ echo data; echo talk >&2\ndata\ntalk\n```\n").failures == []


def test_a_command_may_span_lines(run):
    outcome = run("""
        ```console
        $ cat > f <<'END'
        > a
        >
        > b
        > END
        $ cat f | \\
        > tr a-z A-Z
        A

        B
        ```
    """)
    assert outcome == Outcome(commands=2)


def test_a_command_that_never_ends_is_stopped(run):
    for seconds in (0.5, 5, 50):  # a loaded machine may not even have begun in half a second
        outcome = run("```console\n$ echo begun; sleep 1000\n$ echo after\n```\n", seconds)
        (failure,) = outcome.failures
        assert "page.md:2" in failure and f"not done after {seconds:g} s" in failure
        assert outcome.commands == 1
        if failure.endswith("begun\n"):
            break
    else:
        pytest.fail("what it had printed is not shown")


def test_python_blocks_share_a_namespace_and_the_directory_of_the_page(run):
    outcome = run("""
        ```python
        from pathlib import Path
        Path("made.txt").write_text("by Python")
        x = 1
        ```
        ```python
        >>> x + 1
        2
        >>> print("one\\ntwo")
        one
        …
        >>> y = 5
        ```
        ```python
        assert y == 5
        ```
        ```console
        $ cat made.txt
        by Python
        ```
    """)
    assert outcome == Outcome(commands=1, python_blocks=3)


def test_page_failing_python_reports_its_line(run):
    (failure,) = run("# Title\n\n```python\nx = 1\nassert x == 2\n```\n").failures
    assert failure.startswith("page.md:3:")
    assert 'File "page.md", line 5' in failure and "AssertionError" in failure


def test_page_wrong_example_reports_its_line(run):
    (failure,) = run("# Title\n\n```python\n>>> 1 + 1\n3\n```\n").failures
    assert 'File "page.md", line 4' in failure and "Expected:\n    3" in failure


@pytest.mark.parametrize("kind", ["console", "python"])
def test_a_block_that_is_not_run_is_counted_with_its_reason(run, kind):
    outcome = run(f"<!-- not run: needs a network -->\n\n```{kind}\n$ make test\n```\n")
    assert outcome == Outcome(not_run=["page.md:3: needs a network"])


@pytest.mark.parametrize("comment", ["<!-- not run -->", "<!-- not run: -->", "<!-- not run:   -->"])
def test_not_running_a_block_needs_a_reason(run, comment):
    (failure,) = run(f"{comment}\n```console\n$ true\n```\n").failures
    assert "no reason" in failure


def test_a_comment_holds_for_the_next_block_only(run):
    outcome = run("<!-- not run: why -->\n```console\n$ false\n```\n\n```console\n$ false\n```\n")
    assert len(outcome.not_run) == len(outcome.failures) == 1


def test_a_comment_further_up_does_not_count(run):
    outcome = run("<!-- not run: why -->\n\nWords.\n\n```console\n$ false\n```\n")
    assert outcome.not_run == [] and len(outcome.failures) == 1


@pytest.mark.parametrize("kind", ["bash", "sh", "shell", "pycon", "py"])
def test_commands_in_another_dress_are_refused(run, kind):
    (failure,) = run(f"```{kind}\nropewalk demo\n```\n").failures
    assert "so that it is run" in failure


def test_other_blocks_are_left_alone(run):
    assert (
        run("```json\n{\n```\n\n```\n$ false\n```\n\n````text\n```console\n$ false\n```\n````\n") == Outcome()
    )


def test_a_block_in_a_list_is_run(run):
    assert run("1. First\n\n   ```console\n   $ echo one\n   one\n   ```\n") == Outcome(commands=1)


def test_a_block_that_is_never_closed_is_refused(run):
    (failure,) = run("```console\n$ true\n").failures
    assert "page.md:1: the block is never closed" in failure


@pytest.mark.parametrize(
    ("expected", "printed", "fits"),
    [
        (["ok  …  blake3:…"], "ok  01HF  blake3:2a6c\n", True),
        (["a … c"], "a\nc\n", False),
        (["…"], "", True),
        (["…"], "a\nb\n", True),
        (["a", "…"], "a\n", True),
        (["a", "…", "z"], "a\nb\n", False),
        (["a.c"], "abc\n", False),
        (["a"], "a   \n\n", True),
        ([], "", True),
        ([], "\n", True),
        ([], "a\n", False),
        (["  a"], "a\n", False),
    ],
)
def test_what_fits(expected, printed, fits):
    assert matches(expected, printed) is fits


def test_the_line_of_a_step_is_that_of_the_page():
    page = Page("page.md", "# Title\n\n```console\n$ one  # exits 3\n1\n\n$ two\n```\n")
    (block,) = page.blocks()
    assert [(step.line, step.command, step.expected, step.exit_code) for step in steps(block)] == [
        (4, "one", ("1",), 3),
        (7, "two", (), 0),
    ]
    with pytest.raises(Broken):
        Page("page.md", "<!-- not run -->\n```python\n```\n").blocks()


def test_guides_read_one_after_the_other_share_a_home_and_a_folder():
    """A key that is there already is kept, and no two pages make a repository of one name."""
    guides = [page for page in pages() if page.name.startswith(("README", "docs/tour", "docs/guide/"))]
    lines = [(page.name, line) for page in guides for line in page.text.splitlines()]
    keys = [(name, line) for name, line in lines if line.startswith("$ ropewalk key new ")]
    assert keys and [each for each in keys if not each[1].endswith(" --if-missing")] == []
    makes = re.compile(r"\$ (?:ropewalk init|git init -q --bare|git clone -q --(?:mirror|bare) \S+) (\S+)")
    made = [(match[1], name) for name, line in lines if (match := makes.match(line))]
    twice = [each for each, count in Counter(repository for repository, _ in made).items() if count > 1]
    assert made and [each for each in made if each[0] in twice] == []
