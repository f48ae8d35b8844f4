"""Count verified events by day and type: a job for `spark-submit`, a standalone cluster or Spark Connect.

    spark-submit --master spark://host:7077 daily_counts.py /data/sales.git /data/counts
    SPARK_REMOTE=sc://host:15002 python daily_counts.py /data/sales.git /data/counts

Every machine needs ropewalk with the extra `spark` and the repository under the same path. A log that does not verify
ends the job with the entry's name.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ropewalk.pipeline import read


def main(repository: str, target: str) -> None:
    spark = SparkSession.builder.appName("daily counts").getOrCreate()
    events = read(spark, repository, columns=["topic", "type", "time"])
    counted = events.groupBy(F.to_date("time").alias("day"), "topic", "type").count()
    counted.coalesce(1).write.mode("overwrite").parquet(target)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
