"""What Spark looks for: a module `pyspark_<name>` with a `DefaultSource` makes `format("ropewalk")` work unregistered."""

from ropewalk.pipeline.source import RopewalkSource as DefaultSource

__all__ = ["DefaultSource"]
