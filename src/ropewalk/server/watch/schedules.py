"""Work that is done by schedule: archives, packing, recovery drills, anchors, compaction of logs, ingest, tables.

One job runs at a time in a repository, also across processes. When a job is due is written down with a jitter after it
ran; a crash leaves it due, and every job can be repeated. A run that did something, or failed, is recorded in the audit
channel. A successful ingest is not: its record would be new to the next one. `pipeline status` lists what it wrote.

<home>/schedules/state.json    {"version":1,"jobs":{name:{"due_ns","started_ns","ended_ns","ok","detail"}}}
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ropewalk.disk.durable import Disk
from ropewalk.disk.state_folder import StateFolder
from ropewalk.errors import NotFound, RopewalkError, Unavailable, Unverified
from ropewalk.gitlog.core.anchor import anchors
from ropewalk.gitlog.core.layout import SHIPLOG
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.signing import set_anchor
from ropewalk.gitlog.store.rollup import pack_count, roll_up
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.key import Signer
from ropewalk.ledger.archive.cold import cold_store
from ropewalk.ledger.archive.drill import record_drill, run_drill
from ropewalk.ledger.archive.pack import pack_channel
from ropewalk.ledger.archive.retain import retain_channel
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.settings import FOLDER, channels
from ropewalk.ledger.transparency.publish import publish_tiles
from ropewalk.server.auth.audit import CHANNEL as AUDIT_CHANNEL
from ropewalk.server.watch.channel_writer import NODE_KEY, ChannelWriter
from ropewalk.server.watch.config import DAY_S, WatchConfig

STATE = "state.json"
JITTER = 0.1  # of the interval, both ways
PIPELINE_TIMEOUT_S = 86_400  # a job over tables that runs longer than a day is stopped
PIPELINE_COMMAND = "from ropewalk.cli import main; main()"
_journal = logging.getLogger("ropewalk.watch")

Acts = list[str]
Job = Callable[[Acts], None]


class Schedules:
    """The jobs of one repository. Its clock and its chance are arguments."""

    def __init__(
        self,
        home: Path,
        config: WatchConfig,
        *,
        channel_keys: Callable[[str], Sequence[SigningKey]],
        signing_key: Callable[[str], SigningKey],
        now_ns: Callable[[], int],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._home, self._config, self._now_ns, self._chance = home, config, now_ns, chance
        self._writer = ChannelWriter(home, channel_keys, signing_key)
        self._folder = StateFolder(home / "schedules")

    def jobs(self) -> dict[str, tuple[float, Job]]:
        """Return the configured jobs: seconds between two runs, and what to do."""
        config = self._config
        found: dict[str, tuple[float | None, Job]] = {
            "archive": (None if config.archive is None or config.keep_days is None else DAY_S, self._archive),
            "pack": (None if config.keep_days is None else DAY_S, self._pack),
            "drill": (config.drills_s, self._drill),
            "anchor": (config.anchors_s, self._anchor),
            "compact": (config.compaction_s, self._compact),
            "ingest": (config.ingest_s, self._ingest),
            "tables": (config.tables_s, self._tables),
        }
        return {name: (every_s, job) for name, (every_s, job) in found.items() if every_s is not None}

    def state(self) -> dict[str, dict[str, Any]]:
        """Return what is known of each job."""
        return read_jobs(self._folder)

    def run_due(self) -> list[str]:
        """Run the jobs that are due, one after the other, and return what they did.

        Return at once if another process runs them.
        """
        jobs = self.jobs()
        if not jobs or all(self._now_ns() < self.state().get(name, {}).get("due_ns", 0) for name in jobs):
            return []
        self._folder.make()
        acts: list[str] = []
        try:
            with self._folder.locked(0):
                for name, (every_s, job) in jobs.items():
                    acts += self._run(name, every_s, job)
        except Unavailable as error:
            _journal.info("schedules: %s", error)
        return acts

    def _run(self, name: str, every_s: float, job: Job) -> list[str]:
        state = self.state()
        known = state.setdefault(name, {})
        now = self._now_ns()
        if now < known.get("due_ns", 0):
            return []
        known["started_ns"] = now
        self._save(state)
        acts: list[str] = []
        try:
            job(acts)
            ok, detail = True, ""
        except (RopewalkError, OSError) as error:
            ok, detail = False, str(error)
            _journal.warning("%s: %s", name, error)
        ended = self._now_ns()
        if acts or not ok:
            try:
                self._writer.record(f"schedule.{name}", {"ok": ok, "acts": acts, "detail": detail}, ended)
            except (
                RopewalkError,
                OSError,
            ) as error:  # it stays due: an act that is not recorded is done again
                ok, detail, every_s = False, f"not recorded: {error}", 0.0
        wait_ns = int(every_s * 1e9 * (1 + JITTER * (2 * self._chance() - 1)))
        known.update(ended_ns=ended, due_ns=ended + wait_ns, ok=ok, detail=detail or "; ".join(acts)[:500])
        self._save(state)
        return acts

    def _save(self, jobs: dict[str, dict[str, Any]]) -> None:
        self._folder.replace(STATE, json.dumps({"version": 1, "jobs": jobs}).encode())

    # Jobs. What fails for one channel is reported after all others had their turn.

    def _each_channel(self, acts: Acts, act: Callable[[str], str | None]) -> None:
        faults = []
        for channel in channels(self._home):
            try:
                found = act(channel)
            except (RopewalkError, OSError) as error:
                faults.append(f"{channel}: {error}")
            else:
                acts += [found] if found is not None else []
        if faults:
            raise Unverified("; ".join(faults))

    def _archive(self, acts: Acts) -> None:
        to, keep_days = self._config.archive or "", self._config.keep_days

        def archive(channel: str) -> str | None:
            if _is_empty(self._home, channel):
                return None
            if self._config.drop:
                keys = partial(self._writer.keys, channel)
                dropped = retain_channel(self._home, channel, keys, to, keep_days=keep_days).dropped
                return f"dropped {dropped} archived segments of {channel}" if dropped else None
            key = self._writer.keys(channel)[0]
            done = cold_store(to).archive(self._home, channel, key, keep_days=keep_days)
            return f"archived {channel}: {len(done.made)} archives" if done.made else None

        self._each_channel(acts, archive)

    def _pack(self, acts: Acts) -> None:
        def pack(channel: str) -> str | None:
            done = pack_channel(self._home, channel, keep_days=self._config.keep_days)
            return f"packed {channel}: {done.made} segments" if done.made else None

        self._each_channel(acts, pack)

    def _drill(self, acts: Acts) -> None:
        with cold_store(self._config.archive or "").folder() as source:
            self._rehearse(acts, source)

    def _rehearse(self, acts: Acts, source: Path) -> None:
        def drill(channel: str) -> str | None:
            if not (source / channel).is_dir():
                return None
            done = run_drill(source, channel, self._home, now_ns=self._now_ns)
            folder = self._home / FOLDER / channel / "drills"
            folder.mkdir(exist_ok=True)
            record_drill(done, folder)
            if not done.ok:
                wrong = next(step for step in done.report.steps if step.status == "failed")
                raise Unverified(f"recovery drill failed: {wrong.name}: {wrong.detail}")
            return f"rehearsed recovery of {channel} in {done.seconds_total:g} s"

        self._each_channel(acts, drill)

    def _anchor(self, acts: Acts) -> None:
        """Anchor the heads of all namespaces, signed, and publish the signed heads of all channels as tiles."""
        with open_repository(self._home.parent) as log:
            for topic in log.topics():
                last = next(anchors(log.store, SHIPLOG, topic), None)
                if last is None or last.head != log.lines.line(SHIPLOG, topic).head:
                    done = set_anchor(log, topic, label="watch", signer=Signer(NODE_KEY, self._writer.key))
                    acts.append(f"anchored shiplog/{topic} at {done.head[:12]}")
        folder = self._config.anchor_folder
        if folder is not None:
            self._each_channel(acts, lambda channel: self._publish(channel, Path(folder)))

    def _publish(self, channel: str, folder: Path) -> str | None:
        if _is_empty(self._home, channel):
            return None
        with open_channel(self._home, channel) as reading:
            key = self._writer.keys(channel)[0]
            done = publish_tiles(reading, key, self._config.anchor_host, folder / channel)
        # The audit channel grows by the record of this job; recording that as well would never end.
        return (
            f"published {channel}: {done.size} blocks" if done.written and channel != AUDIT_CHANNEL else None
        )

    def _compact(self, acts: Acts) -> None:
        """Join small packs of the git logs."""
        with open_repository(self._home.parent) as log:
            folder = log.store.pack_folder
            before = pack_count(folder)
            joined = roll_up(folder, self._home / "locks", Disk(), at_most=1)
        if joined:
            acts.append(f"joined packs: {before} to {before - joined}")

    def _ingest(self, _acts: Acts) -> None:
        """Run `pipeline ingest`. What it wrote is an act of the warehouse, and no entry here: it would be ingested."""
        self._pipeline("ingest", self._config.ingest_into or "", "--verify", self._config.ingest_verify)

    def _tables(self, acts: Acts) -> None:
        warehouse = Path(self._config.warehouse or "")
        if not warehouse.is_dir():
            raise NotFound(f"there is no warehouse at {warehouse}", path=str(warehouse))
        found = self._pipeline("compact", str(warehouse))
        new, merged = sum(not each["kept"] for each in found["summaries"]), found["files_merged"]
        if new or merged:
            acts.append(f"compacted tables: {new} summaries, {merged} files merged")

    def _pipeline(self, job: str, warehouse: str, *options: str) -> dict[str, Any]:
        """Run a job over tables in a child process, with which Spark and its memory end; return what it prints."""
        command = [sys.executable, "-c", PIPELINE_COMMAND, "--json", "pipeline", job, *options]
        command += ["--warehouse", warehouse, "--source", str(self._home.parent)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PIPELINE_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"pipeline {job} ran for more than {PIPELINE_TIMEOUT_S:,} s") from error
        if done.returncode:
            raise Unavailable(f"pipeline {job}: {_reason(done.stderr)}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def _reason(stderr: str) -> str:
    """Return what a command with `--json` says is wrong: the last problem, with its advice."""
    for line in reversed(stderr.splitlines()):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            problem = json.loads(line)
            return " ".join(filter(None, (problem["detail"], problem.get("advice"))))
    return stderr.strip()[-300:] or "it ended without a message"


def read_jobs(folder: StateFolder) -> dict[str, dict[str, Any]]:
    """Return what is known of each job; nothing is known without a readable file: then all are due."""
    try:
        found: Any = json.loads(folder.read(STATE))
    except (NotFound, ValueError, RecursionError):
        return {}
    jobs = found.get("jobs") if isinstance(found, dict) and found.get("version") == 1 else None
    return jobs if isinstance(jobs, dict) else {}


def _is_empty(home: Path, channel: str) -> bool:
    with open_channel(home, channel) as reading:
        return reading.head().height == 0
