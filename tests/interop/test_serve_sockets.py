"""Bad clients in number, a small share of `make torture ONLY=serve_sockets`."""

from __future__ import annotations

import pytest
from tests.torture.serve_sockets import run


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_memory_stays_bounded_under_bad_clients():
    report = run(quick=True)
    assert report["ok"], report
