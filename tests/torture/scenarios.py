"""Load and chaos (S4 §15): servers, clients and followers as processes, under load, in bad weather, among bad peers.

`make torture ONLY=scenarios` plays every scene and writes build/torture-scenarios.json. Each scene is made from a seed,
says what must hold and whether it did, and is held against `scenes/baseline.json`: a criterion that is gone or a seed
that makes another workload is a failure; figures depend on the machine, and only their ratio is recorded.

`python -m tests.torture.scenarios [SCENE …] [--quick] [--seed N] [--write-baseline]` plays some.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.torture.scenes import copies, faults, load, networks, trust
from tests.torture.scenes.house import House
from tests.torture.scenes.report import BASELINE, Scene, as_baseline, compare, machine, read_baseline
from tests.torture.scenes.workload import Workload

__all__ = ["NAMES", "SCENES", "Stage", "play", "run"]

SEED = 15
Play = Callable[[House, Workload, Scene, bool], None]
SCENES: dict[str, tuple[str, Play]] = {
    "transports": ("S4-15.1", load.transports),
    "bursts": ("S4-15.2", load.bursts),
    "replay": ("S4-15.3", copies.replay),
    "weather": ("S4-15.4", faults.weather),
    "lossy_links": ("S4-15.4", networks.lossy_links),
    "floods": ("S4-15.9", networks.floods),
    "slow_readers": ("S4-15.9", networks.slow_readers),
    "late_evidence": ("S4-15.7", trust.late_evidence),
    "key_rotation": ("S4-15.8", trust.key_rotation),
    "misbehaving_peers": ("S4-15.9", faults.misbehaving_peers),
    "followers": ("S4-15.10", copies.followers),
    "policy_cost": ("S4-15.11", load.policy_cost),
}
# Scenes around one server are played again over each of the other transports: "key_rotation over quic".
OVER = ("tls", "grpc", "quic")
SAME_OVER_ALL = (
    "bursts",
    "replay",
    "weather",
    "late_evidence",
    "key_rotation",
    "misbehaving_peers",
    "followers",
    "policy_cost",
)
NAMES = (*SCENES, *(f"{name} over {transport}" for transport in OVER for name in SAME_OVER_ALL))


def run(quick: bool) -> dict[str, Any]:
    """The run `make torture` does."""
    return play(NAMES, quick=quick)


class Stage:
    """Plays scenes, in one house for each transport. Use it in a `with`."""

    def __init__(self, *, quick: bool, seed: int = SEED) -> None:
        self.size, self.seed = "quick" if quick else "full", seed
        self.parts: dict[str, Any] = {}
        self._before = read_baseline(self.size)
        self._houses: dict[str, House] = {}

    def __enter__(self) -> Stage:
        self._stack = contextlib.ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ropewalk-scenes-")))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def play(self, name: str) -> dict[str, Any]:
        """A scene's part of the report; it is played when it is first asked for."""
        if name not in self.parts:
            act, _, transport = name.partition(" over ")
            if transport not in self._houses:
                place = self._folder / (transport or "tcp")
                place.mkdir()
                self._houses[transport] = self._stack.enter_context(House(place, transport or "tcp"))
            part = _play(self._houses[transport], act, self.size == "quick", self.seed)
            compare(part, self._before.get(name), same_seed=self.seed == SEED)
            self.parts[name] = part
            print(f"  {'ok' if part['ok'] else 'FAILED'}  {name}", file=sys.stderr, flush=True)
        return dict(self.parts[name])

    def report(self) -> dict[str, Any]:
        """What was played so far."""
        return {
            "ok": all(part["ok"] for part in self.parts.values()),
            "what": "load and chaos by seed, with criteria, figures and a baseline (S4 §15)",
            "size": self.size,
            "seed": self.seed,
            "machine": machine(),
            "scenarios": self.parts,
        }


def play(names: Sequence[str], *, quick: bool, seed: int = SEED) -> dict[str, Any]:
    """Some scenes, one after the other."""
    with Stage(quick=quick, seed=seed) as stage:
        for name in names:
            stage.play(name)
        return stage.report()


def _play(house: House, name: str, quick: bool, seed: int) -> dict[str, Any]:
    clause, act = SCENES[name]
    scene = Scene(name, clause, " ".join((act.__doc__ or "").split()))
    work = Workload(seed, name)
    started = time.monotonic()
    try:
        act(house, work, scene, quick)
    except Exception as error:
        told = traceback.format_exc().splitlines()[-6:]
        scene.check("it comes to its end", False, error=f"{type(error).__name__}: {error}"[:500], told=told)
    return {
        **scene.to_json(),
        "workload": work.digest,
        "seconds": round(time.monotonic() - started, 1),
    }


def write_baseline(report: dict[str, Any]) -> None:
    """Let later runs be held against this one."""
    whole: dict[str, Any] = (
        json.loads(BASELINE.read_text()) if BASELINE.exists() else {"version": 1, "seed": SEED, "sizes": {}}
    )
    kept = whole["sizes"].setdefault(report["size"], {"scenarios": {}})
    kept["machine"] = report["machine"]
    kept["scenarios"] |= {name: as_baseline(part) for name, part in report["scenarios"].items()}
    BASELINE.write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n")


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.torture.scenarios", description=__doc__)
    options.add_argument("names", nargs="*", metavar="SCENE", help=f"of {', '.join(NAMES)}; default all")
    options.add_argument("--quick", action="store_true", help="a small share of each")
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--write-baseline", action="store_true", help="hold later runs against this one")
    asked = options.parse_args()
    report = play(asked.names or NAMES, quick=asked.quick, seed=asked.seed)
    target = Path("build") / "torture-scenarios.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(report, indent=2) + "\n")
    if asked.write_baseline and report["ok"]:
        write_baseline(report)
    print(f"{'ok' if report['ok'] else 'FAILED'}  report: {target}")
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
