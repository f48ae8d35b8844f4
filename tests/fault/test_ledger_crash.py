"""A killed process loses no receipt."""

from __future__ import annotations

import pytest
from tests.fault.ledger_killing import kill_many


@pytest.mark.timeout(600)
def test_submit_kill_9_loses_no_receipt(tmp_path):
    tally = kill_many(tmp_path, kills=20, seed=20241101)
    assert tally.kills == 20 and tally.receipts > 100
    assert (tally.lost, tally.unopened, tally.wrong) == (0, 0, [])
