"""What Spark looks for: `DefaultSource` in a module `pyspark_ropewalk` makes `format("ropewalk")` known by itself."""

from ropewalk.pipeline.source.source import RopewalkSource as DefaultSource

__all__ = ["DefaultSource"]
