"""Who may import whom. A broken law is named by its sentence, so that the fix is a choice and not a guess."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "ropewalk"

ENGINES = {"gitlog", "gossip", "ledger"}
LOOPS = "native"  # compiled twins of what is written in Python
LAWS: dict[str, tuple[set[str], str]] = {
    "errors": (set(), "errors imports nothing"),
    "kernel": ({"errors"}, "the kernel imports errors only"),
    LOOPS: (set(), "the compiled loops know nothing of the house"),
    **{
        engine: ({LOOPS, "kernel", "errors"}, "engines import the kernel, never one another")
        for engine in ENGINES
    },
    "stream": ({"kernel", "errors"}, "stream imports the kernel"),
    "bridge": (ENGINES | {"kernel", "errors"}, "bridge is the only place two engines meet"),
    "stores": (
        {LOOPS, "kernel", "errors"},
        "stores import the kernel; engines state the ports they implement",
    ),
    "net": ({"kernel", "errors"}, "net carries bytes and knows nothing of engines"),
    "verify": (ENGINES | {"kernel", "errors"}, "verify imports engines and the kernel: no I/O"),
    "node": (
        {"server", "net", "stores", "bridge", "stream", "kernel", "errors"} | ENGINES,
        "node composes everything but the command line and the pipeline",
    ),
    "server": ({"stream", "kernel", "errors"} | ENGINES, "the server reaches stores through node"),
    "pipeline": (
        {"node", "stores", "kernel", "errors"} | ENGINES,
        "pipeline never imports server, net or cli; it reads logs through node",
    ),
    "testing": ({"stores", "stream", "kernel", "errors"} | ENGINES, "testing offers stores and engines"),
}
FREE = {"cli", "__init__"}  # the command line may import everything; the package root lists the public names

# A package's own front door may hand on to the composition behind it, on first use only.
FRONT_DOORS = {(f"{room}/__init__.py", "node") for room in ("gossip", "ledger", "stream")}

PURE = {"kernel", "stream", "bridge"} | ENGINES

# ARCHITECTURE.md names these: pure modules that use threads, and stores that read a clock or take randomness.
THREADED = {"gossip/log.py", "ledger/evidencecheck.py", "ledger/log.py", "ledger/ticket.py"}
TIMED_STORES = {
    f"stores/{name}.py"
    for name in (
        *("folderlock", "git", "gitrefs", "gitrollup", "gitseen"),
        *("indexfiles", "packread", "segmentwriter", "statefolder"),
    )
}
CHANCE = {"time", "random", "secrets", "uuid"}
IMPURE_MODULES = {
    "asyncio",
    "glob",
    "io",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "shutil",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "time",
    "urllib",
    "uuid",
}
IMPURE_CALLS = {"open", "input", "print"}
IMPURE_METHODS = {"now", "utcnow", "today"}


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}: write the whole name"
            if node.module == "ropewalk":
                yield from ((f"ropewalk.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module or "", node.lineno


def breaches(path: Path, tree: ast.Module) -> Iterator[str]:
    here = room(path)
    if here in FREE:
        return
    assert here in LAWS, f"src/ropewalk/{here} is a new room: write its law into LAWS"
    allowed, sentence = LAWS[here]
    where = path.relative_to(SOURCE).as_posix()
    for name, line in imported(tree):
        parts = name.split(".")
        if parts[0] != "ropewalk" or len(parts) == 1:
            continue
        there = parts[1]
        if there in allowed | {here, "__version__"} or (where, there) in FRONT_DOORS:
            continue
        yield f"{where}:{line} imports {name}; the law: {sentence}"


def impurities(path: Path, tree: ast.Module) -> Iterator[str]:
    if room(path) not in PURE:
        return
    where = path.relative_to(SOURCE).as_posix()
    for name, line in imported(tree):
        if name.split(".")[0] in IMPURE_MODULES:
            yield f"{where}:{line} imports {name}; pure rooms take bytes, time and chance as arguments"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield f"{where}:{node.lineno} calls {node.func.id}(); pure rooms do no I/O"
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in IMPURE_METHODS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in {"datetime", "date"}
        ):
            yield f"{where}:{node.lineno} reads the clock; time is an argument"


def test_every_room_imports_only_what_its_law_allows():
    found = [breach for path, tree in modules() for breach in breaches(path, tree)]
    assert not found, "\n".join(found)


def test_kernel_and_engines_do_no_io_and_read_no_clock():
    found = [impurity for path, tree in modules() for impurity in impurities(path, tree)]
    assert not found, "\n".join(found)


def test_architecture_names_every_threaded_module():
    threads = {"threading", "concurrent", "multiprocessing", "_thread"}
    found = {
        path.relative_to(SOURCE).as_posix()
        for path, tree in modules()
        if room(path) in PURE and any(name.split(".")[0] in threads for name, _ in imported(tree))
    }
    assert found == THREADED
    text = (SOURCE.parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in THREADED)


def test_architecture_names_every_store_with_a_clock():
    found = {
        path.relative_to(SOURCE).as_posix()
        for path, tree in modules()
        if room(path) == "stores"
        and (
            any(name.split(".")[0] in CHANCE for name, _ in imported(tree))
            or any(
                isinstance(node, ast.Attribute)
                and (node.attr in IMPURE_METHODS | {"urandom"})
                and isinstance(node.value, ast.Name)
                and node.value.id in {"datetime", "date", "os"}
                for node in ast.walk(tree)
            )
        )
    }
    assert found == TIMED_STORES
    text = (SOURCE.parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert all(f"`{Path(name).stem}`" in text for name in TIMED_STORES)


def test_architecture_names_every_front_door():
    doors = {path.relative_to(SOURCE).as_posix() for path, tree in modules() if leads_to_node(path, tree)}
    assert doors == {where for where, _ in FRONT_DOORS}


def leads_to_node(path: Path, tree: ast.Module) -> bool:
    return room(path) in PURE and any(name.startswith("ropewalk.node") for name, _ in imported(tree))


def test_the_environment_is_read_only_by_the_command_line():
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path, tree in modules()
        if room(path) != "cli"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    ]
    assert not found, found


@pytest.mark.parametrize(
    ("where", "text", "claim"),
    [
        ("kernel/x.py", "from ropewalk.gitlog import log", "the kernel imports errors only"),
        ("gitlog/x.py", "import ropewalk.ledger.block", "never one another"),
        ("stores/x.py", "from ropewalk import node", "stores import the kernel"),
        ("gossip/x.py", "def f():\n    from ropewalk.node import open", "never one another"),
        ("bridge/x.py", "from ropewalk.stores import git", "the only place two engines meet"),
        ("ledger/x.py", "from ropewalk.bridge import mirror", "never one another"),
        ("pipeline/x.py", "from ropewalk.bridge import mirror", "pipeline never imports"),
        ("stream/x.py", "from ropewalk.gitlog import log", "stream imports the kernel"),
    ],
)
def test_a_breach_is_named_by_its_sentence(where, text, claim):
    (found,) = breaches(SOURCE / where, ast.parse(text))
    assert claim in found


@pytest.mark.parametrize(
    "text", ["import os", "from time import time", "open('x')", "datetime.now()", "print(1)", "import random"]
)
def test_an_impurity_is_seen(text):
    assert list(impurities(SOURCE / "kernel/x.py", ast.parse(text)))


def loaded_after(statement: str) -> set[str]:
    script = f"{statement}; import sys; print('\\n'.join(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in answer.stdout.split()}


def test_importing_ropewalk_loads_nothing_heavy():
    heavy = {"pyspark", "litestar", "pygit2", "cryptography", "nacl", "rich", "click", "lmdb", "websockets"}
    assert not heavy & loaded_after("import ropewalk")


def test_the_root_command_loads_nothing_but_click():
    heavy = {
        "pyspark",
        "litestar",
        "pygit2",
        "cryptography",
        "nacl",
        "rich",
        "orjson",
        "blake3",
        "jsonschema_rs",
    }
    assert not heavy & loaded_after("from ropewalk.cli.main import run; run(['--help'])")
