"""Who may import whom, and which modules may do I/O. A broken law is named by its sentence."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.parsed import parsed, source_files

SOURCE = Path(__file__).resolve().parent.parent / "src" / "ropewalk"

ENGINES = {"gitlog", "gossip", "ledger"}
BASE = {"errors", "kernel", "pages"}
IO_BASE = BASE | {"disk", "net", "native"}
# package → (packages it may import besides itself, the law). The longest matching prefix of a module counts.
LAWS: dict[str, tuple[set[str], str]] = {
    "errors": (set(), "errors imports nothing"),
    "kernel": ({"errors", "pages"}, "the kernel imports errors, and pages for notebooks"),
    "pages": (set(), "pages fills templates and imports nothing of ropewalk"),
    "native": (set(), "the compiled loops import nothing of ropewalk"),
    "disk": (BASE, "disk imports the kernel; engines call it, it calls none"),
    "net": (BASE, "net carries bytes and imports no engine"),
    **dict.fromkeys(ENGINES, (IO_BASE, "engines never import one another")),
    "stream": (BASE, "the stream state machines import the kernel only"),
    "stream.serve": (IO_BASE | {"gitlog"}, "stream servers import net and the git log they serve"),
    "bridge": (ENGINES | IO_BASE, "bridge is where engines meet; it imports no server and no command"),
    "repository_check": (ENGINES | IO_BASE, "the repository check composes the engines' verifiers"),
    "simulation": ({"errors", "kernel", "ledger"}, "a simulation runs the ledger's replay in memory"),
    "verification": (
        ENGINES | IO_BASE | {"repository_check"},
        "verification composes the engines' verifiers",
    ),
    "server": (
        ENGINES | IO_BASE | {"bridge", "stream", "repository_check", "pipeline"},
        "the server composes engines, streams and the warehouse's reader; it imports no command and no pyspark",
    ),
    "pipeline": (ENGINES | {"disk", "native"} | BASE, "pipeline never imports net, bridge, stream or cli"),
}
FREE = {
    "cli",
    "repository",
    "handles",
    "_lazy",
    "__init__",
}  # the command line and the front door may import everything

# Modules and packages of engines, stream and bridge that do I/O; all others there are pure.
EDGES = {
    "gitlog.sharing",
    "gitlog.store",
    "gitlog.repository",
    "gitlog.consumers.consumers",
    "gitlog.privacy.apply",
    "gitlog.privacy.blob_store",
    "gitlog.compat.transfer",
    "ledger.channel",
    "ledger.archive.check",
    "ledger.archive.cold",
    "ledger.archive.drill",
    "ledger.archive.files",
    "ledger.archive.pack",
    "ledger.archive.restore",
    "ledger.archive.retain",
    "ledger.archive.write",
    "ledger.block.find_forks",
    "ledger.bundle.files",
    "ledger.bundle.head_proofs",
    "ledger.bundle.zstd_file",
    "ledger.evidence.rotation",
    "ledger.evidence.settings",
    "ledger.ingest.async_log",
    "ledger.ingest.thread_pool",
    "ledger.keys.failover",
    "ledger.keys.rotate",
    "ledger.mailbox.anchoring",
    "ledger.mailbox.client",
    "ledger.mailbox.enclave_channel",
    "ledger.mailbox.ring_report",
    "ledger.mailbox.server",
    "ledger.mailbox.shared_memory",
    "ledger.remote.client",
    "ledger.remote.client_session",
    "ledger.remote.conversation",
    "ledger.remote.dialing",
    "ledger.remote.transports.grpc_client",
    "ledger.remote.transports.grpc_messages",
    "ledger.remote.transports.grpc_server",
    "ledger.remote.transports.quic_client",
    "ledger.remote.transports.quic_server",
    "ledger.remote.replica",
    "ledger.remote.server",
    "ledger.remote.server_session",
    "ledger.remote.sync_client",
    "ledger.remote.writer_lease",
    "ledger.replay.channel_replay",
    "ledger.replay.prove_state",
    "ledger.replay.guard",
    "ledger.transparency.heads",
    "ledger.transparency.publish",
    "ledger.transparency.timestamps",
    "ledger.transparency.witness_folder",
    "ledger.transparency.witnessing",
    "ledger.versions.change",
    "ledger.versions.lifecycle",
    "ledger.versions.muscles",
    "ledger.versions.publish",
    "ledger.versions.rehearse",
    "gossip.peer",
    "stream.serve",
    "bridge.brokers.loops",
    "bridge.brokers.nats",
    "bridge.brokers.redis",
    "bridge.brokers.run",
    "bridge.channel_source",
    "bridge.governance.effects",
    "bridge.governance.guard",
    "bridge.governance.run",
    "bridge.gossip_mirror",
    "bridge.mirror",
    "bridge.progress",
    "bridge.webhooks.hooks",
    "bridge.webhooks.post",
    "bridge.webhooks.run",
    "ledger.replay.child_process",
    "ledger.replay.runner",
}
PURE_ROOTS = {"kernel", "stream", "bridge"} | ENGINES
PURE_LAW = "pure modules take bytes, time and randomness as arguments and import no module that does I/O"
IMPURE_MODULES = {
    "asyncio",
    "fcntl",
    "glob",
    "io",
    "lmdb",
    "mmap",
    "os",
    "pathlib",
    "pygit2",
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
THREADS = {"Thread", "Timer", "ThreadPoolExecutor"}
FOLDER_MAX = 16  # modules in one folder


@cache
def modules() -> tuple[tuple[Path, ast.Module], ...]:
    return tuple((path, parsed(path)) for path in source_files() if path.is_relative_to(SOURCE))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def within(name: str, packages: set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:count]) in packages for count in range(1, len(parts) + 1))


def law_of(name: str) -> tuple[set[str], str]:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        if (law := LAWS.get(".".join(parts[:count]))) is not None:
            return law
    raise AssertionError(f"src/ropewalk/{parts[0]} is a new package: write its law into LAWS")


def is_pure(name: str) -> bool:
    return name.split(".")[0] in PURE_ROOTS and not within(name, EDGES)


def imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every imported module with its line; `from package import module` counts as the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}: write the whole name"
            module = node.module or ""
            yield from (
                (f"{module}.{alias.name}" if module.startswith("ropewalk") else module, node.lineno)
                for alias in node.names
            )


def breaches(path: Path, tree: ast.Module) -> Iterator[str]:
    name = name_of(path)
    here = name.split(".")[0]
    if here in FREE or name.endswith("__init__"):  # a package's list of public names imports on first use
        return
    allowed, sentence = law_of(name)
    for module, line in imported(tree):
        parts = module.split(".")
        if parts[0] != "ropewalk" or len(parts) == 1 or parts[1] in allowed | {here, "__version__"}:
            continue
        yield f"{name}:{line} imports {module}; the law: {sentence}"


def impurities(path: Path, tree: ast.Module) -> Iterator[str]:
    name = name_of(path)
    if not is_pure(name) or name.endswith("__init__"):
        return
    for module, line in imported(tree):
        inner = module.removeprefix("ropewalk.")
        if module.split(".")[0] in IMPURE_MODULES or (
            inner != module and (within(inner, EDGES) or inner.split(".")[0] in {"disk", "net"})
        ):
            yield f"{name}:{line} imports {module}; {PURE_LAW}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in THREADS:
            yield f"{name}:{node.lineno} starts a thread; {PURE_LAW}"
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield f"{name}:{node.lineno} calls {node.func.id}(); {PURE_LAW}"
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in IMPURE_METHODS
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in {"datetime", "date"}
        ):
            yield f"{name}:{node.lineno} reads the clock; {PURE_LAW}"


def test_imports_obey_the_laws():
    found = [breach for path, tree in modules() for breach in breaches(path, tree)]
    assert not found, "\n".join(found)


def test_pure_modules_do_no_io():
    found = [impurity for path, tree in modules() for impurity in impurities(path, tree)]
    assert not found, "\n".join(found)


def test_edges_exist():
    """An entry of EDGES that names nothing would hide a renamed module."""
    names = {name_of(path).removesuffix(".__init__") for path, _ in modules()}
    assert names >= EDGES, sorted(EDGES - names)


def test_no_folder_is_crowded():
    folders = Counter(path.parent for path, _ in modules() if path.name != "__init__.py")
    crowded = {str(folder): count for folder, count in folders.items() if count > FOLDER_MAX}
    assert not crowded, f"a folder holds at most {FOLDER_MAX} modules: {crowded}"


def test_only_pipeline_imports_pyspark():
    found = [
        f"{name_of(path)}:{line}"
        for path, tree in modules()
        if name_of(path).split(".")[0] not in {"pipeline", "cli"}
        for module, line in imported(tree)
        if module.split(".")[0] == "pyspark"
    ]
    assert not found, found


def test_only_cli_reads_the_environment():
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path, tree in modules()
        if name_of(path).split(".")[0] != "cli"
        and name_of(path) != "pipeline.source.frames"  # `start_spark`, whose JVM gets the environment anyway
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    ]
    assert not found, found


@pytest.mark.parametrize(
    ("where", "text", "claim"),
    [
        ("kernel/x.py", "from ropewalk.gitlog.core import log", "the kernel imports errors, and pages"),
        ("gitlog/core/x.py", "import ropewalk.ledger.block", "never import one another"),
        ("disk/x.py", "from ropewalk import gitlog", "engines call it"),
        ("gossip/core/x.py", "def f():\n    from ropewalk.cli import main", "never import one another"),
        ("bridge/x.py", "from ropewalk.cli import main", "where engines meet"),
        ("ledger/remote/x.py", "from ropewalk.bridge import mirror", "never import one another"),
        ("pipeline/jobs/x.py", "from ropewalk.bridge import mirror", "pipeline never imports"),
        ("stream/core/x.py", "from ropewalk.gitlog.core import log", "import the kernel only"),
        ("stream/serve/x.py", "from ropewalk.ledger import block", "the git log they serve"),
        ("server/x.py", "from ropewalk.cli import main", "it imports no command"),
        ("ledger/remote/x.py", "from ropewalk.server import node", "never import one another"),
    ],
)
def test_breach_is_named_by_its_law(where, text, claim):
    (found,) = breaches(SOURCE / where, ast.parse(text))
    assert claim in found


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "from time import time",
        "open('x')",
        "datetime.now()",
        "print(1)",
        "import random",
        "threading.Thread()",
        "from ropewalk.disk import durable",
        "from ropewalk.ledger.channel import channel",
    ],
)
def test_impurity_is_seen(text):
    assert list(impurities(SOURCE / "ledger/rules/x.py", ast.parse(text)))


def loaded_after(statement: str) -> set[str]:
    script = f"{statement}; import sys; print('\\n'.join(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in answer.stdout.split()}


def test_import_ropewalk_loads_nothing_heavy():
    heavy = {"pyspark", "litestar", "uvicorn", "prometheus_client", "pygit2", "cryptography"}
    heavy |= {"nacl", "rich", "click", "lmdb", "websockets"}
    assert not heavy & loaded_after("import ropewalk")


def test_root_command_loads_only_click():
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


def test_one_group_commit_for_both_writers():
    """Law 4 of the house: one group-commit mechanism; the writers of both engines use it and wait by no other."""
    mechanism = "ropewalk.kernel.group_commit"
    writers = {"gitlog.repository.group_commit", "ledger.ingest.log"}
    trees = {name_of(path): tree for path, tree in modules()}
    users = {
        name
        for name, tree in trees.items()
        if any(m.startswith(f"{mechanism}.GroupCommit") for m, _ in imported(tree))
    }
    assert users == writers, "git logs and channels share one group commit, kernel.group_commit"
    waiting = {"threading", "queue", "concurrent.futures"}
    found = [
        f"{name} imports {m}" for name in sorted(writers) for m, _ in imported(trees[name]) if m in waiting
    ]
    assert not found, f"{found}: submitters wait in kernel.group_commit only"


def test_one_join_for_both_line_engines():
    """Spans of git logs and channels join by one function."""
    defined = [
        name_of(path)
        for path, tree in modules()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "join"
    ]
    assert defined == ["kernel.entry"]
    users = {
        name_of(path)
        for path, tree in modules()
        if any(m == "ropewalk.kernel.entry.join" for m, _ in imported(tree))
    }
    assert users >= {"gitlog.verify.log_check", "ledger.proof.verify", "pipeline.jobs.verify"}


def test_one_writer_of_html():
    """Markup is escaped in one place, which fills the templates; the reference of the HTTP API escapes its own."""
    users = {
        name_of(path) for path, tree in modules() if any(m.split(".")[0] == "html" for m, _ in imported(tree))
    }
    assert users <= {"pages.__init__", "server.http.openapi"}


def test_skips_go_through_tools():
    """A skip has a reason and a lane where the test runs: `tests/tools.py` makes them all."""
    tests = Path(__file__).parent
    apart = {tests / name for name in ("tools.py", "test_status.py", "test_layers.py")}
    found = [
        str(path.relative_to(tests))
        for path in sorted(tests.rglob("*.py"))
        if path not in apart
        and re.search(r"pytest\.skip|mark\.skip|mark\.xfail|importorskip", path.read_text())
    ]
    assert found == []
