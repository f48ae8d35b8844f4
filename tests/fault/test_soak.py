"""A quarter of a minute of `make torture ONLY=soak`."""

from __future__ import annotations

import pytest
from tests.torture import soak


@pytest.mark.slow
def test_soak_loses_nothing_and_draws_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "PAGE", tmp_path / "soak.html")
    report = soak.run(quick=True)
    assert report["ok"], report
    assert report["acknowledged"] > 0 and report["lives"] > 1
    assert (tmp_path / "soak.html").read_text().count("<polyline") == 7
