"""A place nobody may write to is told as such: unavailable, with what to do, and no defect of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# Root may write everywhere; without this capability it is a user like any other.
AS_A_USER = (
    ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"] if os.geteuid() == 0 else []
)

SCRIPT = """
import sys
from pathlib import Path
from ropewalk.errors import Unavailable
from ropewalk.node.gossip import open_topic
from ropewalk.node.ledger import open_channel
home = Path(sys.argv[1])
for look in (lambda: open_channel(home, "ea.core").head(), lambda: open_topic(home, "com.example", create=False)):
    try:
        look()
    except Unavailable as error:
        print("copy the repository" in error.advice_now)
"""


def test_an_index_or_a_topic_that_may_not_be_written_is_unavailable(tmp_path):
    from tests.unit.gossip.conftest import key
    from tests.unit.ledger.making import observed, opened

    from ropewalk.node.gossip import open_topic

    try:
        subprocess.run([*AS_A_USER, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this root cannot be made a user")
    with opened(tmp_path) as ledger:
        ledger.log.submit(observed(1).raw)
    with open_topic(tmp_path, "com.example", create=True, signer=key(1)) as log:
        log.append("hello")
    subprocess.run(["chmod", "-R", "a-w", tmp_path], check=True)
    try:
        done = subprocess.run(
            [*AS_A_USER, sys.executable, "-c", SCRIPT, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
    finally:
        subprocess.run(["chmod", "-R", "u+w", tmp_path], check=True)
    assert done.stdout.split() == ["True", "True"], done.stderr
