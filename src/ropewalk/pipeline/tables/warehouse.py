"""A warehouse: Parquet tables in folders, and one manifest per batch: what was written, from which source, with which
root. The manifests are the truth: files no manifest names were never written.

    <warehouse>/<table>/batch=<n>/part-….parquet     tables that grow; date=<day>/log=<topic>/ comes before the file
                                                     where the tables are partitioned
    <warehouse>/deployments/batch=<n>/open.parquet   deployments that a later one may change; replaced by the next
    <warehouse>/<table>/batch-<n>.parquet            tables that are made anew (deployment_measures, consumer_lag)
    <warehouse>/_ropewalk/batches/<n>.json           manifests, each naming the digest of the one before
    <warehouse>/_ropewalk/head.json                  number and digest of the last manifest
    <warehouse>/_ropewalk/runs/<time>-<job>.json     what ran, and how it ended
    <warehouse>/<table>/<name>.parquet               tables to which jobs add a file a run (verdicts, replays, health)
    <warehouse>/_ropewalk/noted/<table>.<name>.json  name, digest and size of such a file
    <warehouse>/_ropewalk/unrecorded.json            names of those from before there were records, where there are any
    <warehouse>/<table>/_delta_log/…                 for other readers, where it was asked for; follows the manifests
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ropewalk.disk.durable import Disk, read_optional, sync
from ropewalk.errors import BrokenLink, Conflict, Damaged, NotFound
from ropewalk.kernel import jcs
from ropewalk.kernel.digest import blake3
from ropewalk.pipeline.source.logs import Mode
from ropewalk.pipeline.source.offsets import Offset
from ropewalk.pipeline.tables.row_groups import PARTITIONED, is_partitioned, write_grouped
from ropewalk.pipeline.tables.table_files import TABLE_NAME, check_file_name, is_replaced, safe_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

EVENT_TABLES = ("events", "events_rejected")
GROWING = (*EVENT_TABLES, "blocks", "commits", "gossip_dag")
SETTLING = ("deployments",)  # they grow, but for the rows of one file
REMADE = ("deployment_measures", "consumer_lag")
JOB_TABLES = ("verdicts", "replays", "health")  # one file a run of a job; no manifest names it
DELTA_LOG = "_delta_log"  # a folder inside a table's, where Delta logs were asked for
HOME = "_ropewalk"
RECORDS, UNRECORDED = "noted", "unrecorded.json"  # in HOME: about the files that jobs note
ICEBERG = "iceberg"  # a folder in HOME, where Iceberg tables were asked for
BATCH = re.compile(r"batch(?:=([0-9]+)|-([0-9]+)\.parquet)", re.ASCII)
VERSION = 4  # of manifests, the files they may name and the columns of tables
RUN_NUMBERS = ("ended_ms", "seconds", "rows_per_s", "entries")  # in records of runs, where they were measured
READABLE = (3, VERSION)  # 3: all deployments are in one file, which every batch replaces
CHUNK = 1 << 20
TIME_MS_END = 253_402_300_800_000  # the year 10000


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a table: its name inside the warehouse, the digest of its bytes, its size and rows."""

    name: str
    blake3: str
    size: int
    rows: int

    def to_json(self) -> dict[str, Any]:
        """Return what manifests hold."""
        return {"name": self.name, "blake3": self.blake3, "bytes": self.size, "rows": self.rows}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one batch wrote: which part of which logs, under which roots, into which files."""

    number: int
    previous: str | None  # digest of the manifest before
    source: str
    mode: str
    made_ms: int
    start: Offset
    end: Offset
    logs: tuple[dict[str, Any], ...]
    files: dict[str, tuple[StoredFile, ...]] = field(default_factory=dict)
    faults: tuple[dict[str, str], ...] = ()
    replaces: tuple[str, ...] = ()  # files whose rows are in this batch's files now
    version: int = VERSION  # an older manifest keeps its own: the next one names the digest of its bytes

    def to_bytes(self) -> bytes:
        """Return the file."""
        return jcs.encode(
            {
                "version": self.version,
                "number": self.number,
                "previous": self.previous,
                "source": self.source,
                "verify": self.mode,
                "made_ms": self.made_ms,
                "start": self.start.to_json(),
                "end": self.end.to_json(),
                "logs": list(self.logs),
                "files": {table: [file.to_json() for file in files] for table, files in self.files.items()},
                "faults": list(self.faults),
                "replaces": list(self.replaces),
            }
        )

    @property
    def digest(self) -> str:
        """The digest that the next manifest names."""
        return blake3(self.to_bytes()).hex()

    @property
    def rows(self) -> int:
        """How many events and rejected events it brought."""
        if self.replaces:
            return 0
        return sum(file.rows for table in EVENT_TABLES for file in self.files.get(table, ()))

    @classmethod
    def from_bytes(cls, raw: bytes) -> Manifest:
        """Read what `to_bytes` wrote."""
        value: Any = jcs.parse_canonical(raw)
        version = value.get("version") if isinstance(value, dict) else None
        if version not in READABLE:
            raise Damaged(
                f"version must be {' or '.join(map(str, READABLE))}, got {version!r}",
                reason="manifest",
                advice="Tables of another version of ropewalk: run `ropewalk pipeline ingest` into a new folder.",
            )
        _check_members(value)
        number = int(value["number"])
        return cls(
            number,
            value["previous"],
            value["source"],
            value["verify"],
            value["made_ms"],
            Offset.from_json(value["start"]),
            Offset.from_json(value["end"]),
            tuple(value["logs"]),
            {
                table: tuple(
                    StoredFile(
                        check_file_name(table, number, f["name"]),
                        f["blake3"],
                        int(f["bytes"]),
                        int(f["rows"]),
                    )
                    for f in files
                )
                for table, files in value["files"].items()
            },
            tuple(value["faults"]),
            tuple(value["replaces"]),
            version,
        )


def _check_members(value: dict[str, Any]) -> None:
    """Raise `ValueError` unless those members that are used as they stand have their types.

    Other members are read, and the digest that the next manifest names shows where reading changed them.
    """
    whole = {"source": str, "verify": str, "made_ms": int, "logs": list, "faults": list, "replaces": list}
    log = {"engine": str, "topic": str, "start": int, "end": int, "rows": int, "rejected": int, "root": str}
    parts = [(value, whole), *((each, log) for each in value["logs"])]
    parts += [(each, dict.fromkeys(("engine", "topic", "entry_id"), str)) for each in value["faults"]]
    for part, kinds in parts:
        for name, kind in kinds.items():
            if type(part[name]) is not kind:
                raise ValueError(f"{name} must be of the type {kind.__name__}, got {part[name]!r:.60}")
    if value["verify"] not in get_args(Mode) or not 0 <= value["made_ms"] < TIME_MS_END:
        raise ValueError("verify must be a mode of ingest, and made_ms a time up to the year 9999")
    if not all(isinstance(name, str) for name in value["replaces"]):
        raise ValueError("replaces must hold names")


class Warehouse:
    """The tables in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.home = self.path / HOME
        self._desk = self.home / "staging" / secrets.token_hex(8)

    @property
    def delta_mark(self) -> Path:
        """Return the file whose presence means that Delta logs are kept."""
        return self.inside(HOME, "delta")

    def make(self) -> Warehouse:
        """Make the folders that are missing; they are there after a power cut, too."""
        if not self.home.is_dir() and all(
            (self.path / name).exists() for name in ("HEAD", "objects", "refs")
        ):
            raise Conflict(
                f"{self.path} is a git repository; a warehouse must be another folder",
                advice="Name another --warehouse, as ./tables.",
            )
        for folder in ("batches", "runs"):
            Disk().make_directories(self.inside(HOME, folder))
        return self

    def inside(self, *parts: str) -> Path:
        """Return a path below the warehouse; every read, write and delete of a table's files asks here.

        Raise `Damaged` if a part is no plain name, or if there is a link on the way.
        """
        return safe_path(self.path, *parts)

    def paths(self, files: Iterable[StoredFile]) -> list[Path]:
        """Return where the files that manifests name are."""
        return [self.inside(*file.name.split("/")) for file in files]

    def fault_of(self, file: StoredFile, *, deep: bool = True) -> str | None:
        """Return what is wrong with a file that a manifest names: it is missing, or holds other bytes.

        Unless `deep`, only its size is looked at.
        """
        (path,) = self.paths([file])
        if not path.is_file():
            return f"{file.name} is missing"
        if path.stat().st_size != file.size or (deep and digest_file(path) != file.blake3):
            return f"{file.name} holds other bytes than were written"
        return None

    def require_unchanged(self, files: Iterable[StoredFile], *, deep: bool = True) -> None:
        """Refuse damaged files before a writer reads them: their rows would get the digest of another file."""
        for file in files:
            if fault := self.fault_of(file, deep=deep):
                raise Damaged(
                    fault,
                    reason="table",
                    advice="Restore the file from a copy, or fill another folder anew with `ropewalk pipeline ingest`.",
                )

    def noted(self, table: str) -> list[Path]:
        """Return the files of a table that jobs write in addition to those of the manifests, oldest first."""
        return [self.inside(table, each.name) for each in sorted(self.inside(table).glob("*.parquet"))]

    def tables(self) -> dict[str, list[Path]]:
        """Return the files of every table: those that the manifests name, and those that jobs noted."""
        current = self.current_files(self.manifests())
        found = {name: self.paths(files) for name, files in current.items()}
        return found | {name: paths for name in JOB_TABLES if (paths := self.noted(name))}

    def note(self, table: str, name: str, rows: pa.Table) -> None:
        """Write one more file of such a table, whole or not at all, and record it.

        It is recorded before it takes its place: a job that dies in between leaves a record and a hidden file, and
        never a file without a record, as one that was put there by others.
        """
        import pyarrow.parquet as pq

        self.make()
        Disk().make_directories(self.inside(table))
        target, beside = self.inside(table, f"{name}.parquet"), self.inside(table, f".{name}.parquet.tmp")
        records = self.inside(HOME, RECORDS)
        if not records.is_dir():
            if before := sorted(self.records()):
                Disk().replace(self.inside(HOME, UNRECORDED), jcs.encode(before))
            Disk().make_directories(records)
        pq.write_table(rows, beside)
        _sync(beside)
        _sync(beside.parent)
        digest, size = describe_file(beside)
        record = {"name": f"{table}/{target.name}", "blake3": digest, "bytes": size}
        Disk().replace(self.inside(HOME, RECORDS, f"{table}.{name}.json"), jcs.encode(record))
        beside.replace(target)

    def records(self) -> dict[str, tuple[str, int] | None]:
        """Return digest and size of the files that jobs noted, by name; None for those from before there were records.

        A file is recorded before it takes its place: list files first, then ask for the records.
        """
        home = self.inside(HOME, RECORDS)
        if not home.is_dir():
            return {f"{table}/{path.name}": None for table in JOB_TABLES for path in self.noted(table)}
        path = self.inside(HOME, UNRECORDED)
        try:
            raw = read_optional(path)
            value: Any = () if raw is None else jcs.parse_canonical(raw)
            found: dict[str, tuple[str, int] | None] = dict.fromkeys(value)
            for path in sorted(home.glob("*.json")):
                value = jcs.parse_canonical(self.inside(HOME, RECORDS, path.name).read_bytes())
                table, _, name = path.stem.partition(".")
                if value.keys() != {"name", "blake3", "bytes"} or value["name"] != f"{table}/{name}.parquet":
                    raise ValueError(f"it must hold name, blake3 and bytes of {table}/{name}.parquet")
                found[value["name"]] = (value["blake3"], value["bytes"])
        except Exception as error:
            raise Damaged(
                f"record {path.name} cannot be read: {error}",
                reason="record",
                advice="Restore it from a copy, or move it and the table file that it names away.",
            ) from error
        return found

    def require(self) -> Warehouse:
        """Refuse a folder that is no warehouse."""
        if not self.batches.is_dir():
            raise NotFound(
                f"{self.path} is no warehouse",
                path=str(self.path),
                advice="Make one with `ropewalk pipeline ingest --warehouse DIR`.",
            )
        return self

    def manifests(self) -> list[Manifest]:
        """Return every batch, oldest first; a chain with a gap or a changed link is refused."""
        head = self._head()  # before the manifests: a writer may add some meanwhile
        found: list[Manifest] = []
        known: set[str] = set()
        for each in sorted(self.batches.glob("*.json")):
            path = self.inside(HOME, "batches", each.name)
            try:
                manifest = Manifest.from_bytes(path.read_bytes())
            except Damaged as error:
                raise Damaged(
                    f"manifest {path.name}: {error.detail}", advice=error.advice_now, **error.fields
                ) from error
            except Exception as error:
                raise Damaged(f"manifest {path.name} cannot be read: {error}", reason="manifest") from error
            expected = found[-1].digest if found else None
            if manifest.number != len(found) + 1 or manifest.previous != expected:
                raise BrokenLink(f"manifest {path.name} does not stand on the one before it", entry=path.name)
            if not known.issuperset(manifest.replaces):
                raise BrokenLink(f"manifest {path.name} replaces files that no batch wrote", entry=path.name)
            known.update(file.name for files in manifest.files.values() for file in files)
            found.append(manifest)
        if head and (len(found) < head[0] or found[head[0] - 1].digest != head[1]):
            raise BrokenLink(
                f"manifest {head[0]:010d}.json is missing or is not the one that head.json names",
                entry=f"{head[0]:010d}.json",
            )
        return found

    def batch_count(self) -> int:
        """Return how many manifests there are, without a look into them."""
        return sum(1 for _ in self.batches.glob("*.json"))

    def _head(self) -> tuple[int, str] | None:
        """Return number and digest of the last manifest; None in a warehouse without batches, or of before the file."""
        path = self.inside(HOME, "head.json")
        try:
            value: Any = jcs.parse_canonical(path.read_bytes())
            if set(value) != {"number", "digest"} or value["number"] < 1:
                raise ValueError("it must hold a number and a digest")
            return int(value["number"]), str(value["digest"])
        except FileNotFoundError:
            return None
        except Exception as error:
            raise Damaged(f"head.json cannot be read: {error}", reason="manifest") from error

    def _write_head(self, manifest: Manifest) -> None:
        """Record the last manifest: the next one names its digest, and until then this file does."""
        self._write(jcs.encode({"number": manifest.number, "digest": manifest.digest}), "head.json")

    def _write(self, raw: bytes, *parts: str) -> None:
        """Write a file in the home, whole or not at all; its name is durable once its folder is synced."""
        beside = self.inside(HOME, *parts[:-1], f".{parts[-1]}.tmp")
        with beside.open("wb") as stream:
            stream.write(raw)
            stream.flush()
            sync(stream.fileno())
        beside.replace(self.inside(HOME, *parts))

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer; what a writer that died left without a manifest is swept away.

        A warehouse whose manifests are damaged, or that holds links, is refused before anything in it is touched.
        """
        self.make()
        lock = self.inside(HOME, "lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise Conflict(
                    f"{self.path} is being written by another process",
                    advice="A warehouse has one writer at a time; wait for it to end.",
                ) from error
            known = self.manifests()
            if (
                known
            ):  # a sync of theirs may have failed: nothing may follow a manifest that a power cut takes
                _sync(self.batches)
            leftovers = self._leftovers(known)
            self._follow(known)  # before anything a Delta log may still name is swept away
            self._sweep(known, leftovers)
            if known:  # a writer may have died before it did, or was of a version that did not
                self._write_head(known[-1])
            yield
        finally:
            os.close(descriptor)

    def _leftovers(self, manifests: list[Manifest]) -> list[Path]:
        """Find what a writer left that did not reach its manifest; raise if there is a link in the way of any table."""
        for manifest in manifests:
            for files in manifest.files.values():
                self.paths(files)
        found = [self.inside(HOME, "staging")]
        found += [self.inside(HOME, "batches", each.name) for each in self.batches.glob(".*.tmp")]
        for table in self.table_names():
            self.inside(table, DELTA_LOG)
            for each in self.inside(table).glob("batch[=-]*"):
                path, match = self.inside(table, each.name), BATCH.fullmatch(each.name)
                if match and int(match[1] or match[2]) > len(manifests):
                    found.append(path)
        return found

    def table_names(self) -> list[str]:
        """Return the tables that ingest keeps, with those of event types that have a folder."""
        typed = sorted(each.name for each in self.path.glob("events__*") if TABLE_NAME.fullmatch(each.name))
        return [*GROWING, *SETTLING, *REMADE, *typed]

    @property
    def batches(self) -> Path:
        """The folder of the manifests."""
        return self.inside(HOME, "batches")

    def _sweep(self, manifests: list[Manifest], leftovers: Iterable[Path]) -> None:
        """Remove what no manifest names yet, or no longer."""
        staging = self.inside(HOME, "staging")
        for path in leftovers:
            # Tasks of a killed driver may still write there; the next run removes the rest.
            if path == staging:
                shutil.rmtree(path, ignore_errors=True)
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self._drop(
            {file.name for each in manifests for files in each.files.values() for file in files}, manifests
        )

    def _drop(self, names: Iterable[str], manifests: list[Manifest]) -> None:
        """Remove those of some files that are no longer part of a table."""
        for name in set(names) - self.current_names(manifests):
            path = self.inside(*name.split("/"))
            path.unlink(missing_ok=True)
            for folder in path.parents[: name.count("/") - 1]:  # not the table's own
                if not any(folder.rglob("*.parquet")):
                    shutil.rmtree(folder, ignore_errors=True)

    def batch_folder(self, table: str, number: int) -> Path:
        """Return where a batch of a table goes."""
        return self.inside(table, f"batch={number}")

    def staging(self, name: str) -> Path:
        """Return where something is written before it takes its place.

        Every writer has its own folder: the workers of a killed writer may write on for a moment, and what
        they still write must land nowhere.
        """
        return self._desk / name

    def is_partitioned(self, manifests: Iterable[Manifest]) -> bool:
        """Return whether the tables have a folder for each day and log; `pipeline compact --by` decides it."""
        return any(is_partitioned(file.name) for file in self.current_files(manifests).get("events", ()))

    def put_in_place(self, table: str, number: int, *, partitioned: bool = False) -> tuple[StoredFile, ...]:
        """Move what was staged for a table to the folder of a batch; return its files.

        If `partitioned`, the rows are written once more, into folders of one day and one log.
        Until the manifest names them, they are no part of the table: what the last one names stays where it is.
        """
        import pyarrow.parquet as pq

        staged = self.staging(table)
        if table in REMADE:
            (written,) = staged.glob("*.parquet")
            target = self.inside(table, f"batch-{number}.parquet")
            target.parent.mkdir(parents=True, exist_ok=True)
            written.rename(target)
            shutil.rmtree(staged)
            return (self._stored(target),)
        if partitioned and table in PARTITIONED:
            plain = staged.rename(self.staging(f"{table}.plain"))
            files = table_paths(plain)
            write_grouped(files, staged, pq.read_schema(files[0]), partitioned=True)
            shutil.rmtree(plain)
        target = self.batch_folder(table, number)
        target.parent.mkdir(parents=True, exist_ok=True)
        for leftover in staged.glob(".*.crc"):  # Hadoop's own checksums; ours say more
            leftover.unlink()
        staged.rename(target)
        return tuple(self._stored(path) for path in table_paths(target))

    def _stored(self, path: Path) -> StoredFile:
        import pyarrow.parquet as pq

        name = path.relative_to(self.path).as_posix()
        path = self.inside(*name.split("/"))
        rows = pq.read_metadata(path).num_rows
        return StoredFile(name, digest_file(path), path.stat().st_size, rows)

    def commit(self, manifest: Manifest, before: list[Manifest]) -> None:
        """Make a batch part of the warehouse, on top of those before it: with its manifest on disk, it is."""
        written = [path for files in manifest.files.values() for path in self.paths(files)]
        # A file is there after a power cut only if every folder on the way to it is.
        above = {folder for path in written for folder in path.parents if folder.is_relative_to(self.path)}
        for path in (*written, *above):
            _sync(path)
        self._write(manifest.to_bytes(), "batches", f"{manifest.number:010d}.json")
        _sync(self.batches)
        self._write_head(manifest)
        manifests = [*before, manifest]
        self._follow(manifests)
        self._drop(self.current_names(before), manifests)

    @property
    def iceberg_mark(self) -> Path:
        """Return the file whose presence means that Iceberg tables are kept."""
        return self.inside(HOME, ICEBERG, "catalog.db")

    def _follow(self, manifests: list[Manifest]) -> None:
        """Bring Delta logs and Iceberg tables up to date, where they are kept."""
        if manifests and self.delta_mark.exists():
            from ropewalk.pipeline.tables.delta import follow_delta

            follow_delta(self, manifests)
        if manifests and self.iceberg_mark.exists():
            from ropewalk.pipeline.tables.iceberg import follow_iceberg

            follow_iceberg(self, manifests)

    def current_files(self, manifests: Iterable[Manifest]) -> dict[str, list[StoredFile]]:
        """Return the files that make up each table now; a table that has none is left out."""
        stay: dict[str, list[StoredFile]] = {}
        newest: dict[str, list[StoredFile]] = {}
        for manifest in manifests:
            if gone := frozenset(manifest.replaces):
                for found in (stay, newest):
                    found |= {
                        table: [f for f in files if f.name not in gone] for table, files in found.items()
                    }
            for table, files in manifest.files.items():
                if replacing := [file for file in files if is_replaced(file.name)]:
                    newest[table] = replacing
                stay.setdefault(table, []).extend(file for file in files if file not in replacing)
        found = {table: files + newest.get(table, []) for table, files in stay.items()}
        return {table: files for table, files in found.items() if files}

    def current_names(self, manifests: Iterable[Manifest]) -> set[str]:
        """Return the names of all files that make up the tables now."""
        return {file.name for files in self.current_files(manifests).values() for file in files}

    def record_run(self, job: str, started_ms: int, facts: Mapping[str, Any]) -> None:
        """Write down that a job ran."""
        self.make()
        raw = json.dumps({"job": job, "started_ms": started_ms, **facts}).encode()
        self._write(raw, "runs", f"{started_ms:015d}-{job}.json")

    def runs(self) -> list[dict[str, Any]]:
        """Return what ran, oldest first; a file that cannot be read as a failed run of the job `unreadable`."""
        paths = sorted(self.inside(HOME, "runs").glob("*.json"))
        return [_read_run(self.inside(HOME, "runs", each.name)) for each in paths]


def _read_run(path: Path) -> dict[str, Any]:
    """Return the record of a run, with numbers that can be shown: times up to the year 9999."""
    try:
        run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        numbers = [run["started_ms"], *(run[name] for name in RUN_NUMBERS if name in run)]
        if not isinstance(run["job"], str) or not all(0 <= number < TIME_MS_END for number in numbers):
            raise ValueError("job must be a string, and times and rates must be positive numbers")
    except Exception as error:
        told = f"{HOME}/runs/{path.name} cannot be read: {str(error) or type(error).__name__}"
        return {"job": "unreadable", "started_ms": 0, "ok": False, "error": told}
    return run


def reached(manifests: Iterable[Manifest]) -> Offset:
    """Return how far every log is recorded."""
    return Offset({log: point for each in manifests for log, point in each.end.points.items()})


def made_anew(manifests: list[Manifest]) -> list[Manifest]:
    """Return the batches since the tables were last made anew: one that replaces files and brings logs of its own."""
    start = max((at for at, each in enumerate(manifests) if each.replaces and each.logs), default=0)
    return manifests[start:]


def write_plainly(spark: SparkSession) -> None:
    """Let Spark write times in microseconds, which every reader of Parquet knows."""
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")


def table_paths(folder: Path) -> list[Path]:
    """Return the Parquet files below the folder of a table, in order."""
    return [path for path in sorted(folder.rglob("*.parquet")) if DELTA_LOG not in path.parts]


def describe_file(path: Path) -> tuple[str, int]:
    """Return digest and size of a file, as records of noted files hold them."""
    return digest_file(path), path.stat().st_size


def digest_file(path: Path) -> str:
    """Return the BLAKE3 digest of a file."""
    import blake3 as hasher

    digest = hasher.blake3()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return str(digest.hexdigest())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
