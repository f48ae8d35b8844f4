"""`ropewalk doctor`: check the installation and the repository."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import MARKS, command, emit
from ropewalk.cli.common.locations import NODE_KEY, here, key_folder, named_repository
from ropewalk.cli.common.options import flag
from ropewalk.cli.init import prepare
from ropewalk.errors import NotFound, RopewalkError, Unavailable
from ropewalk.kernel import jcs
from ropewalk.kernel.report import Step
from ropewalk.native import is_here

if TYPE_CHECKING:
    from ropewalk.disk.repository_paths import RepositoryPaths

# distribution → what it is for; each is imported, because an installed wheel may be for another platform.
LIBRARIES = {
    "blake3": ("blake3", "content ids"),
    "cbor2": ("cbor2", "the ledger's wire form"),
    "coincurve": ("coincurve", "secp256k1 keys"),
    "cryptography": ("cryptography", "P-256 keys and certificates"),
    "jsonschema-rs": ("jsonschema_rs", "schema checks"),
    "libipld": ("libipld", "DAG-CBOR"),
    "lmdb": ("lmdb", "indexes and gossip stores"),
    "orjson": ("orjson", "fast JSON"),
    "pygit2": ("pygit2", "git configuration and new repositories"),
    "pynacl": ("nacl.bindings", "Ed25519 and sealing"),
    "rfc8785": ("rfc8785", "canonical JSON"),
    "websockets": ("websockets", "talking to gossip peers"),
    "zstandard": ("zstandard", "bundles"),
}
DESCRIPTORS_MIN = 1_024
STALE_LOCK_S = 600.0  # git holds a lock for milliseconds
FREE_BYTES_MIN = 256 << 20  # report less before a write fails


@command("doctor", "ropewalk doctor", "ropewalk doctor --fix", "ropewalk doctor --repo my.git --json")
@flag("--fix", "Repair what is safe: modes of key files, the node key, refspecs.")
def doctor(fix: bool) -> None:
    """Check the installation and, if there is one, the repository.

    Exit 7 if something required is missing or broken.
    """
    fixed = list(_fixes()) if fix else []
    checks = [*fixed, *_installation(), *_extras(), *_keys(), *_repository()]
    ok = all(check.status != "failed" for check in checks)
    lines = (f"{MARKS[check.status]}  {check.name:14}{check.detail}" for check in checks)
    emit({"ok": ok, "checks": [check.to_json() for check in checks]}, lines)
    if not ok:
        raise click.exceptions.Exit(7)


def _fixes() -> Iterator[Step]:
    """Repair what loses nothing. A stale lock stays: only a person knows that no git command is running."""
    folders = [key_folder()]
    with suppress(NotFound):
        place = here()
        folders.append(place.keys)
        yield from (Step("fixed", "passed", text) for text in prepare(place))
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and mode & 0o077:
            path.chmod(0o600)
            yield Step("fixed", "passed", f"mode of {path.name} was {mode & 0o777:o}, is 600")


def _installation() -> Iterator[Step]:
    version = sys.version_info
    yield Step("python", "passed" if version >= (3, 11) else "failed", ".".join(map(str, version[:3])))
    for distribution, (module, purpose) in LIBRARIES.items():
        try:
            import_module(module)
            yield Step(distribution, "passed", f"{metadata.version(distribution)}, {purpose}")
        except Exception as error:  # a broken wheel may raise anything
            yield Step(distribution, "failed", f"{error}; needed for {purpose}: pip install {distribution}")
    yield _loops()
    git = shutil.which("git")
    if git is None:
        yield Step("git", "not_checked", "not on PATH; needed only for clone, fetch and push")
    else:
        answer = subprocess.run([git, "--version"], capture_output=True, text=True, check=False, timeout=10)
        yield Step("git", "passed", answer.stdout.strip().removeprefix("git version "))


def _loops() -> Step:
    if is_here():
        return Step("native loops", "passed", "compiled; large batches are packed by them")
    return Step(
        "native loops",
        "not_checked",
        "not compiled: Python does their work, more slowly. Install a C compiler, then ropewalk again",
    )


def _extras() -> Iterator[Step]:
    from ropewalk.cli.server.serve import need_server
    from ropewalk.pipeline.launch.java import find_java
    from ropewalk.pipeline.launch.launch import require_spark

    try:
        require_spark()
        java = find_java(os.environ)
        yield Step(
            "spark", "passed", f"{metadata.version('pyspark')}, Java {java.version} by {java.found_by}"
        )
    except Unavailable as error:
        yield Step("spark", "not_checked", f"{error.detail}; only the pipeline needs it. {error.advice_now}")
    try:
        need_server()
        yield Step("server", "passed", f"litestar {metadata.version('litestar')}")
    except Unavailable as error:
        yield Step("server", "not_checked", f"{error.detail}; only `serve` needs it. {error.advice_now}")


def _keys() -> Iterator[Step]:
    folder = key_folder()
    if not folder.is_dir():
        yield Step("keys", "not_checked", "none yet; `ropewalk key new NAME` makes one")
        return
    yield _attempt("keys", lambda: f"{_look_at_keys(folder)}, in the user's configuration directory")


def _look_at_keys(folder: Path) -> str:
    from ropewalk.disk import key_encryption, key_files

    found = key_files.ls(folder)
    for each in found:
        path = folder / f"{each.name}.json"
        with path.open("rb") as stream:
            key_encryption.check_private(stream.fileno(), path)
    plain = sum(each.protection == "none" for each in found)
    return f"{len(found)} that only you can read, {plain} without a passphrase"


def _repository() -> Iterator[Step]:
    from ropewalk.gitlog.privacy.apply import policy_file

    try:
        place = here()
    except NotFound as error:
        text = f"{error.detail}; `ropewalk init PATH` makes one"
        yield Step("repository", "failed" if named_repository() else "not_checked", text)
        return
    yield _attempt("repository", lambda: _look_at_repository(place))
    yield _attempt("clock", lambda: _look_at_clock(place))
    free = shutil.disk_usage(place.git_dir).free
    yield Step("disk", "passed" if free >= FREE_BYTES_MIN else "failed", f"{free >> 20:,} MiB free")
    if (place.keys / f"{NODE_KEY}.json").is_file():
        yield _attempt("node key", lambda: f"{_look_at_keys(place.keys)}; signs blocks and bundles")
    else:
        yield Step("node key", "not_checked", "`ropewalk init` on this repository makes one")
    policy = policy_file(place)
    if os.path.lexists(policy):
        yield _attempt("policy", lambda: _look_at_policy(policy))
    yield _descriptors()
    yield from _stale_locks(place)
    yield from _unfetched(place)
    yield from _channels(place.home)
    yield from _versions(place.home)


def _descriptors() -> Step:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft >= DESCRIPTORS_MIN or soft == resource.RLIM_INFINITY
    if enough:
        return Step("descriptors", "passed", f"{soft:,} files may be open")
    return Step("descriptors", "failed", f"only {soft} files may be open; raise it: ulimit -n 4096")


def _stale_locks(place: RepositoryPaths) -> Iterator[Step]:
    """Report locks of git that are older than any running command would need."""
    now = time.time()
    found = [place.git_dir / "packed-refs.lock", *(place.git_dir / "refs").rglob("*.lock")]
    for lock in found:
        with suppress(FileNotFoundError):
            age_s = now - lock.stat().st_mtime
            if age_s > STALE_LOCK_S:
                text = f"{lock} is {age_s / 60:.0f} minutes old; if no git command is running, remove it"
                yield Step("lock", "failed", text)


def _unfetched(place: RepositoryPaths) -> Iterator[Step]:
    """Report remotes whose logs were never fetched, and logs that were fetched and not merged."""
    from ropewalk.gitlog.sharing.remotes import missing_refspecs, remotes, tracking_prefix
    from ropewalk.gitlog.store.object_store import GitStore

    try:
        store, known = GitStore(place), remotes(place.git_dir)
    except RopewalkError:  # reported as a fault of the repository, or of git
        return
    for remote in known:
        if missing_refspecs(place.git_dir, remote):
            text = f"the logs of {remote} were never fetched; `ropewalk pull {remote}` fetches them"
            yield Step("remote", "not_checked", text)
        prefix = tracking_prefix(remote)
        new = [
            ref
            for ref in store.head_names(prefix)
            if ref.endswith("/head") and store.head(f"refs/{ref.removeprefix(prefix)}") is None
        ]
        if new:
            text = f"{len(new)} logs of {remote} are not here yet: `ropewalk pull {remote}`"
            yield Step("remote", "not_checked", text)


def _look_at_policy(path: Path) -> str:
    """Summarise the policy. While it cannot be read, appends are refused and streams show nothing."""
    from ropewalk.gitlog.privacy.rules import parse_policy
    from ropewalk.stream.core.access import parse_access

    raw = path.read_bytes()
    try:
        rules = parse_policy(raw).rules
        document: Any = jcs.parse(raw)
        parse_access(document.get("stream", {}))
    except RopewalkError as error:
        raise RopewalkError(
            f"{path}: {error.detail}; correct or remove it: until then nothing is recorded, and streams show nothing"
        ) from error
    streams = "; has rules for streams" if "stream" in document else ""
    return f"{len(rules)} privacy rules{streams}"


def _channels(home: Path) -> Iterator[Step]:
    """Report channels that cannot be read, and keys, policies and roots that expire."""
    from ropewalk.ledger.channel.channel import open_channel
    from ropewalk.ledger.channel.settings import channels
    from ropewalk.ledger.keys.rotate import key_notices

    for name in channels(home):
        try:
            with open_channel(home, name) as reading:
                for text in key_notices(reading, time.time_ns()):
                    yield Step("channel", "not_checked", f"{name}: {text}")
        except (RopewalkError, OSError) as error:
            yield Step("channel", "failed", f"{name}: {error}")


def _versions(home: Path) -> Iterator[Step]:
    """Report versions of envelopes that are near their sunset."""
    from ropewalk.ledger.channel.settings import channels
    from ropewalk.ledger.versions.lifecycle import notices

    if not channels(home):
        return
    try:
        due = notices(home, time.time_ns())
    except RopewalkError as error:
        yield Step("versions", "failed", error.detail)
        return
    for notice in due:
        text = f"{notice['version']} has its sunset at {notice['sunset']}, within {notice['days']} days"
        yield Step(
            "versions", "not_checked", f"{text}; `ropewalk ledger lifecycle notify` records that in a channel"
        )


def _look_at_repository(place: RepositoryPaths) -> str:
    from ropewalk.gitlog.store.object_store import GitStore

    store = GitStore(place)  # refuses objects and refs of other formats
    refs = [*store.heads("refs/gatos/"), *store.heads("refs/_shiplog/")]
    return f"{place.git_dir}, {len(refs)} log refs"


def _look_at_clock(place: RepositoryPaths) -> str:
    from ropewalk.gitlog.repository.clock import heads_ahead
    from ropewalk.gitlog.store.object_store import GitStore

    ahead = list(heads_ahead(GitStore(place), time.time_ns() // 1_000_000))
    if ahead:
        raise RopewalkError("; ".join(ahead))
    return "no log is dated ahead of it"


def _attempt(name: str, look: Callable[[], str]) -> Step:
    try:
        return Step(name, "passed", look())
    except Exception as error:  # any failure is a finding
        return Step(name, "failed", str(error))
