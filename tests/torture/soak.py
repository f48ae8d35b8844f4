"""`ropewalk serve` for hours: clients append and read without a pause, and the server is stopped and killed in turns.

Nothing acknowledged is lost or there twice; memory that can leak and descriptors stay bounded: anonymous and shared
pages, and mappings of files that are removed. Pages of files that are there grow with the log and belong to the
kernel's cache: they are shown apart. `ROPEWALK_SOAK_MINUTES` is its length (120). The page `build/torture-soak.html`
shows memory, descriptors and latencies over time.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.store.pack_reader import OPEN_PACKS_MAX
from tests.serving import Served, command, environment, serving
from tests.torture.serve_sockets import rss_mib

PAGE = Path("build/torture-soak.html")
MINUTES, QUICK_MINUTES = 120.0, 0.25
WRITERS, READERS = 3, 2
LIVES = 12  # of the server, at least; a life has at most LIFE_S
LIFE_S = 600.0
SAMPLE_S = 2.0
GROWN_MIB_MAX, FILES_MAX = 100, 400  # a roll-up of packs takes most of it
REMOVED_MAX = (
    OPEN_PACKS_MAX  # mapped files that are removed: packs a reader had open when they were rolled up
)
PLOT = (720, 120)


@dataclass(frozen=True, slots=True)
class Sample:
    """What a server holds at one moment."""

    when: float
    anonymous_mib: float
    file_mib: float
    removed: int  # files that are mapped and not there any more
    descriptors: int


@dataclass(slots=True)
class Soak:
    """What clients and the sampler share."""

    until: float
    server: Served | None = None
    acknowledged: list[str] = field(default_factory=list)
    latencies: list[tuple[float, str, float]] = field(default_factory=list)  # when, what, ms
    samples: list[Sample] = field(default_factory=list)
    refused: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        return time.monotonic() > self.until

    def ask(self, what: str, method: str, path: str, document: Any = None, **headers: str) -> Any:
        """Ask until there is an answer, as a client does: the server may be away."""
        while not self.over:
            server, begun = self.server, time.monotonic()
            if server is None:
                time.sleep(0.05)
                continue
            with contextlib.suppress(OSError, http.client.HTTPException):
                answer = server(method, path, document, headers=headers)
                if answer.status < 300:
                    self.latencies.append((begun - self.started, what, 1000 * (time.monotonic() - begun)))
                    return answer.json
                self.refused += 1
            time.sleep(0.05)
        return None


def run(quick: bool) -> dict[str, Any]:
    """Run for the time asked for, and write the page."""
    minutes = QUICK_MINUTES if quick else float(os.environ.get("ROPEWALK_SOAK_MINUTES", MINUTES))
    soak = Soak(until=time.monotonic() + 60 * minutes)
    threads = [threading.Thread(target=_write, args=(soak, n), daemon=True) for n in range(WRITERS)]
    threads += [threading.Thread(target=_read, args=(soak, n), daemon=True) for n in range(READERS)]
    with tempfile.TemporaryDirectory(prefix="ropewalk-soak-") as name:
        folder, lives, chance = Path(name), 0, random.Random(1)
        while not soak.over:
            with serving(folder, limit_s=LIFE_S + 300, started=True) as soak.server:
                if not lives:
                    for thread in threads:
                        thread.start()
                lives += 1
                end = min(soak.until, time.monotonic() + min(LIFE_S, 60 * minutes / LIVES))
                while time.monotonic() < end:
                    soak.samples.append(_sample(soak, soak.server))
                    time.sleep(SAMPLE_S * chance.uniform(0.5, 1.5))
                if lives % 2:
                    soak.server.process.kill()
                    soak.server.process.wait()
                else:
                    soak.server.stop()
            soak.server = None
        for thread in threads:
            thread.join(180)
        report = _judge(soak, folder, lives)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(_page(soak, report), encoding="utf-8")
    return report


def _write(soak: Soak, number: int) -> None:
    """Append events one by one; a retry has the same key, so that it counts once."""
    for count in range(10**9):
        name = f"{number}-{count}"
        event = {"type": "t", "payload": {"name": name, "text": "x" * 300}}
        if (
            soak.ask("append", "POST", f"/shiplog/soak{number}/events", event, **{"Idempotency-Key": name})
            is None
        ):
            return
        soak.acknowledged.append(name)


def _read(soak: Soak, number: int) -> None:
    while soak.ask("read", "GET", f"/shiplog/soak{number}/events?limit=100") is not None:
        time.sleep(0.01)


def _sample(soak: Soak, server: Served) -> Sample:
    process = Path("/proc") / str(server.process.pid)
    return Sample(
        time.monotonic() - soak.started,
        rss_mib(server, "RssAnon") + rss_mib(server, "RssShmem"),
        rss_mib(server, "RssFile"),
        sum(line.endswith(" (deleted)") for line in (process / "maps").read_text().splitlines()),
        len(list((process / "fd").iterdir())),
    )


def _judge(soak: Soak, folder: Path, lives: int) -> dict[str, Any]:
    """Compare what is in the repository with what was acknowledged."""
    with open_repository(folder / "log.git") as log:
        names = [f"soak{number}" for number in range(WRITERS)]
        found = [each.payload["name"] for name in names for each in log.events(name)]
    verified = subprocess.run(
        command("--repo", str(folder / "log.git"), "verify"),
        capture_output=True,
        env=environment(folder),
        cwd=folder,
        timeout=600,
        check=False,
    )
    lost = set(soak.acknowledged) - set(found)
    anonymous = [each.anonymous_mib for each in soak.samples]
    files = [each.file_mib for each in soak.samples]
    criteria = {
        "nothing acknowledged is lost": not lost,
        "nothing is there twice": len(set(found)) == len(found),
        "the repository verifies": verified.returncode == 0,
        "anonymous memory is bounded": max(anonymous) - min(anonymous) <= GROWN_MIB_MAX,
        "removed files are unmapped": max(each.removed for each in soak.samples) <= REMOVED_MAX,
        "descriptors are bounded": max(each.descriptors for each in soak.samples) <= FILES_MAX,
        "no traceback": "Traceback" not in (folder / "stderr.txt").read_text(),
    }
    return {
        "ok": all(criteria.values()),
        "what": "`ropewalk serve` under load, stopped and killed in turns",
        "criteria": criteria,
        "minutes": round((time.monotonic() - soak.started) / 60, 1),
        "lives": lives,
        "acknowledged": len(soak.acknowledged),
        "stored": len(found),
        "refused": soak.refused,
        "anonymous_mib": [round(min(anonymous), 1), round(max(anonymous), 1)],
        "file_mib": [round(min(files), 1), round(max(files), 1)],
        "removed_max": max(each.removed for each in soak.samples),
        "descriptors_max": max(each.descriptors for each in soak.samples),
        "latency_ms": {what: _percentiles(soak, what) for what in ("append", "read")},
    }


def _percentiles(soak: Soak, what: str) -> dict[str, float]:
    found = sorted(ms for _, name, ms in soak.latencies if name == what) or [0.0]
    return {
        f"p{share}": round(found[min(len(found) - 1, len(found) * share // 100)], 1) for share in (50, 95, 99)
    }


def _page(soak: Soak, report: dict[str, Any]) -> str:
    """Return a page that needs nothing else."""
    seconds = max(each.when for each in soak.samples)
    plots = {
        "anonymous and shared memory, MiB": [(each.when, each.anonymous_mib) for each in soak.samples],
        "pages of mapped files, MiB": [(each.when, each.file_mib) for each in soak.samples],
        "descriptors": [(each.when, float(each.descriptors)) for each in soak.samples],
    }
    for what in ("append", "read"):
        for share in (50, 99):
            plots[f"{what}, p{share} of every 200 calls, ms"] = _windows(soak, what, share)
    drawn = "".join(f"<h2>{escape(name)}</h2>{_plot(points, seconds)}" for name, points in plots.items())
    facts = escape(json.dumps(report, indent=1))
    style = "body{font:16px sans-serif;max-width:46rem;margin:2rem auto}polyline{fill:none;stroke:#06c}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Soak</title><style>{style}</style>'
        f"<h1>ropewalk serve, {report['minutes']} minutes, {report['lives']} lives</h1>"
        f"{drawn}<pre>{facts}</pre></html>\n"
    )


def _windows(soak: Soak, what: str, share: int) -> list[tuple[float, float]]:
    calls = sorted((when, ms) for when, name, ms in soak.latencies if name == what)
    parts = [calls[start : start + 200] for start in range(0, len(calls), 200)]
    return [(part[0][0], sorted(ms for _, ms in part)[len(part) * share // 100]) for part in parts]


def _plot(points: list[tuple[float, float]], seconds: float) -> str:
    width, height = PLOT
    top = max((value for _, value in points), default=0) or 1
    line = " ".join(
        f"{width * when / seconds:.1f},{height - height * value / top:.1f}" for when, value in points
    )
    box = f'viewBox="0 0 {width} {height}" width="{width}"'
    return f'<p>0 to {top:,.1f}</p><svg {box}><polyline points="{line}"/></svg>'


if __name__ == "__main__":
    print(json.dumps(run(quick=True), indent=1))
