"""A disk that is full at the index: what was sealed counts, its receipt is the answer, and the index comes later."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import traceback
from pathlib import Path

from tests.tools import skip_without_rights
from tests.unit.ledger.making import observed, opened
from tests.waiting import LIMIT_S

from ropewalk.ledger.channel.channel import open_channel, verify_blocks
from ropewalk.ledger.ingest.ports import IngestLimits
from ropewalk.ledger.ingest.ticket import LedgerReceipt

ROPEWALK = Path(sys.executable).with_name("ropewalk")
APPEND = """
mount -t tmpfs -o size=256k none "$CHANNEL/index" && cp -r kept/. "$CHANNEL/index/" || exit 99
dd if=/dev/zero of="$CHANNEL/index/.filler" bs=4096 2> /dev/null
exec "$ROPEWALK" ledger append --channel audit --file more.jsonl --jsonl --json
"""


def may_mount(tmp_path: Path) -> bool:
    asked = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(tmp_path)]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def test_append_prints_receipts_on_full_index_disk(tmp_path, monkeypatch):
    """Finding S7: the receipt was printed, then "Nothing was changed" with exit 7."""
    if not may_mount(tmp_path):
        skip_without_rights("a file system that is full takes the right to mount one")
    monkeypatch.chdir(tmp_path)
    channel = tmp_path / "log.git/ropewalk/ledger/audit"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "ROPEWALK_REPO": str(tmp_path / "log.git"),
        "ROPEWALK": str(ROPEWALK),
        "CHANNEL": str(channel),
    }

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )

    assert run(ROPEWALK, "init", "log.git").returncode == 0
    Path("first.json").write_bytes(observed(0).raw)
    assert run(ROPEWALK, "ledger", "append", "--channel", "audit", "--file", "first.json").returncode == 0
    (channel / "index").rename(tmp_path / "kept")
    (channel / "index").mkdir()
    Path("more.jsonl").write_bytes(b"\n".join(observed(number).raw for number in range(1, 200)) + b"\n")
    done = run("unshare", "-rm", "sh", "-c", APPEND)
    assert done.returncode == 0, done
    receipts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(receipts) == 199 and all(each["height"] for each in receipts)
    assert "the envelopes are sealed" in done.stderr and "Nothing was changed" not in done.stderr
    assert run(ROPEWALK, "ledger", "verify", "--channel", "audit", "--deep").returncode == 0


def test_log_keeps_receipts_when_index_is_full(tmp_path):
    with opened(tmp_path) as ledger:
        ledger.log.submit(observed(0).raw)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ledger = opened(tmp_path, segment_bytes=1000, limits=IngestLimits(block_envelopes=2))
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # segments stay below; the index does not
            got = ledger.log.submit_many(observed(number).raw for number in range(1, 200))
            assert all(isinstance(each, LedgerReceipt) for each in got)
            ledger.close()
            assert "index" in ledger.unindexed
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with open_channel(tmp_path, "ea.core") as channel:
        assert channel.head().envelopes == 200
        assert channel.prove(observed(150).id).envelope.id == observed(150).id
    assert verify_blocks(tmp_path, "ea.core", deep=True).ok
    with opened(tmp_path) as ledger:
        assert ledger.log.submit(observed(150).raw).replayed
