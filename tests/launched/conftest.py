"""What these tests share with those of `tests/pipeline`, which hold one Spark session and want the machine alone."""

from __future__ import annotations

from tests.pipeline.conftest import world

__all__ = ["world"]
