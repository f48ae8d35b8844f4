"""Power cuts, disk faults and seeded worlds: `python -m tests.sim [--states N] [--minutes M] [--seed S] [NAME …]`.

The report keeps what earlier runs at the same commit wrote of other names, so a long run can be done in parts.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tests.sim import git_world, gossip, gossip_live, ledger_world, rights_world, stream_world
from tests.sim.power.run import (
    FAULTS,
    faster,
    remembered_signatures,
    simulate,
    simulate_again,
    simulate_faults,
    simulate_rot,
)
from tests.sim.power.workloads import WORKLOADS

REPORT = Path("build/simulate.json")
MIXES = 24
PASS = 1000  # states of one kind of fault before the next has its turn, at least
MODES = ("cut", "rot", "again", *FAULTS)
WORLDS = {
    "worlds": gossip,
    "live_worlds": gossip_live,
    "git_worlds": git_world,
    "ledger_worlds": ledger_world,
    "stream_worlds": stream_world,
    "rights_worlds": rights_world,
}
ENGINES = {
    "git_worlds": "gitlog",
    "ledger_worlds": "ledger",
    "stream_worlds": "stream",
    "rights_worlds": "server",
}


def power(name: str, states: int, seed: int, seconds: float) -> dict[str, Any]:
    """Cut one workload off, let its calls fail and its disk rot, seed after seed, until enough states were seen."""
    started = time.time()
    total: dict[str, Any] = {
        "engine": WORKLOADS[name].engine,
        "states": 0,
        "enumerated": 0,
        "failed": 0,
        "problems": [],
    }
    faults: Counter[str] = Counter()
    seeds = 0
    modes = [each for each in MODES if each not in WORKLOADS[name].without]
    while total["states"] < states and time.time() < started + seconds:
        left: dict[str, Any] = {  # each kind of fault has its turn, also in a short run
            "limit": min(states - total["states"], max(PASS, states // len(modes))),
            "seconds": min(started + seconds - time.time(), seconds / len(modes)),
        }
        kind = modes[seeds % len(modes)]
        if kind == "cut":
            report = simulate(name, seed=seed + seeds, mixes=MIXES, **left)
        elif kind == "rot":
            report = simulate_rot(name, seed=seed + seeds, **left)
        elif kind == "again":
            report = simulate_again(name, seed=seed + seeds, **left)
        else:
            report = simulate_faults(name, kind, seed=seed + seeds, **left)
        seeds += 1
        for key in ("states", "enumerated", "failed"):
            total[key] += report[key]
        found = [{"kind": kind, "seed": report["seed"], **each} for each in report["problems"]]
        total["problems"] = (total["problems"] + found)[:20]
        faults.update(report["faults"])
    return {
        **total,
        "seeds": seeds,
        "states_per_s": round(total["states"] / (time.time() - started), 1),
        "faults": dict(sorted(faults.items())),
        "ok": total["states"] > 0 and not total["failed"],
    }


def worlds(name: str, count: int, seed: int, seconds: float) -> dict[str, Any]:
    """Run seeded worlds of peers; the report names the seeds that failed and counts the steps by kind."""
    world: Any = WORLDS[name]
    failed, ran, until = [], 0, time.time() + seconds
    faults: Counter[str] = Counter()
    while ran < count and time.time() < until:
        try:
            whole = ran % 50 == 0  # these are slower, and git itself says what its settings are
            with remembered_signatures() if whole else faster():
                world.run(seed + ran, deep=whole)
        except Exception as error:
            failed.append({"seed": seed + ran, "error": f"{type(error).__name__}: {error}"})
        faults.update(step.kind for step in world.steps_of(seed + ran))
        ran += 1
    return {
        "engine": ENGINES.get(name, "gossip"),
        "worlds": ran,
        "failed": len(failed),
        "problems": failed[:20],
        "faults": dict(sorted(faults.items())),
        "ok": ran > 0 and not failed,
    }


def main() -> int:
    """Run what was asked for, two at a time, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join((*WORKLOADS, *WORLDS))}; default all")
    parser.add_argument(
        "--states", type=int, default=100_000, help="crash states per engine, over its workloads"
    )
    parser.add_argument("--worlds", type=int, default=10_000, help="seeds per kind of world")
    parser.add_argument("--minutes", type=float, default=240, help="time limit for each name")
    parser.add_argument("--seed", type=int, default=None, help="first seed; a random one by default")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    commit = _commit()  # a commit during a run does not change which code runs
    results = earlier_results(commit)
    names = asked.names or (*WORKLOADS, *WORLDS)
    counts = shares([name for name in names if name in WORKLOADS], asked.states)
    with ProcessPoolExecutor(asked.jobs) as pool:
        jobs = {}
        for name in names:
            count, job = (asked.worlds, worlds) if name in WORLDS else (counts[name], power)
            jobs[pool.submit(job, name, count, seed, asked.minutes * 60)] = name
        for done in as_completed(jobs):
            name = jobs[done]
            results[name] = {"seed": seed, **done.result()}
            mark = "ok" if results[name]["ok"] else "FAILED"
            print(f"{mark:6}  {name}  {json.dumps(results[name])[:200]}", flush=True)
            whole = write_report(results, commit)
    print(f"states by engine: {whole['states']}\nfaults: {whole['faults']}\nreport: {REPORT}")
    return 0 if all(results[name]["ok"] for name in names) else 1


def shares(names: list[str], states: int) -> dict[str, int]:
    """Return how many disks of each workload are checked, so that those of an engine add up."""
    parts: Counter[str] = Counter()
    for name in names:
        parts[WORKLOADS[name].engine] += WORKLOADS[name].share
    return {name: math.ceil(states * WORKLOADS[name].share / parts[WORKLOADS[name].engine]) for name in names}


def earlier_results(commit: str) -> dict[str, Any]:
    """Return what the report says of this commit; nothing where files differ from it."""
    if not REPORT.exists() or commit.endswith("-dirty"):
        return {}
    report = json.loads(REPORT.read_text())
    known: dict[str, Any] = report["results"] if report["commit"] == commit else {}
    return known


def write_report(results: dict[str, Any], commit: str) -> dict[str, Any]:
    """Write what is known so far: sums per engine and of each kind of fault, then every name."""
    engines: dict[str, Counter[str]] = {}
    faults: Counter[str] = Counter()
    for each in results.values():
        sums = engines.setdefault(each["engine"], Counter())
        sums.update({key: each[key] for key in ("states", "enumerated", "worlds") if key in each})
        faults.update(each.get("faults", {}))
    whole = {
        "ok": all(each["ok"] for each in results.values()),
        "commit": commit,
        "states": {engine: dict(sums) for engine, sums in engines.items()},
        "faults": dict(sorted(faults.items())),
        "results": results,
    }
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(whole, indent=1) + "\n")
    return whole


def _commit() -> str:
    """Return the commit that is simulated, with `-dirty` where files differ from it or there is none."""
    words = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "-dirty"


if __name__ == "__main__":
    sys.exit(main())
