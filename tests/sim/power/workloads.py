"""What is recorded. `python -m tests.sim.power.workloads` runs workloads for `recording`, each in a forked process.

A line of JSON comes in for each: name, root, log of calls, fault. The answer is a line with the exit code and what the
process wrote to stderr.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

from ropewalk.errors import RopewalkError
from tests.sim.power import git_work, ledger_work, other_work
from tests.sim.power.base import Workload
from tests.sim.power.states import ACKNOWLEDGED

__all__ = ["WORKLOADS"]

WORKLOADS: dict[str, Workload] = {
    "ledger": ledger_work.LedgerAppends(),
    "ledger_threads": ledger_work.LedgerThreads(),
    "ledger_new": ledger_work.LedgerNew(),
    "ledger_rotation": ledger_work.LedgerRotation(),
    "ledger_archive": ledger_work.LedgerArchive(),
    "ledger_retain": ledger_work.LedgerRetain(),
    "ledger_pull": ledger_work.LedgerPull(),
    "ledger_restore": ledger_work.LedgerRestore(),
    "gitlog": git_work.GitAppends(),
    "gitlog_threads": git_work.GitThreads(),
    "gitlog_new": git_work.GitNew(),
    "gitlog_rollup": git_work.GitRollUp(),
    "push": git_work.GitPush(),
    "bridge": git_work.GitMirror(),
    "gossip": other_work.GossipAppends(),
    "gossip_new": other_work.GossipNew(),
    "gossip_sync": other_work.GossipSync(),
    "warehouse": other_work.WarehouseCommits(),
    "warehouse_merge": other_work.WarehouseMerge(),
    "witness": ledger_work.WitnessSigns(),
    "witness_new": ledger_work.WitnessNew(),
}


def run(name: str, root: Path) -> None:
    """Do the work of one workload; the recorder sees every receipt in its place among the calls.

    After an error of the disk the same process goes on, as a server does. `NAME again` opens a disk and goes on there.
    """
    name, _, opens = name.partition(" ")
    descriptor = os.open(root / ACKNOWLEDGED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def acknowledge(receipt: str) -> None:
        os.write(descriptor, f"{receipt}\n".encode())

    try:
        if not opens:
            WORKLOADS[name].work(root, acknowledge)
        for number in (40, 41) if opens else ():
            acknowledge(WORKLOADS[name].append(root, number))
    except (RopewalkError, OSError):
        if "RECORD_FAULT" not in os.environ and not opens:
            raise
        try:
            WORKLOADS[name].again(root, acknowledge)
        except (RopewalkError, OSError) as error:
            print(f"refused again: {error}", file=sys.stderr)


def serve() -> None:
    """Fork for every line of stdin; the child is recorded and does the work."""
    for name in ("pandas", "pygit2"):  # pyarrow and gitlog import them late: each child would do it again
        importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if not child:
                code = 1
                try:
                    os.dup2(said.fileno(), 2)
                    os.environ.update(asked["environment"])
                    ctypes.CDLL(None).record_begin()
                    run(asked["name"], Path(asked["root"]))
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            said.seek(0)
            tail = said.read()[-2000:].decode(errors="replace")
        print(json.dumps({"code": os.waitstatus_to_exitcode(status), "said": tail}), flush=True)


if __name__ == "__main__":
    serve()
