"""Tables about deployments, each a function from a DataFrame to a DataFrame: no files, no session, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.window import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STANDING = ("success", "override", "finalize", "revert")  # what is running after it
FAILED = ("failed", "revert")
WEEK_S = 7 * 24 * 3600


def deployments(events: DataFrame) -> DataFrame:
    """Deployments from the trailers of git events: what ran where, when, how it ended, and what is deployed now."""
    return deployment_history(deployment_rows(events))


def deployment_rows(events: DataFrame) -> DataFrame:
    """Return the deployment in each event, without looking at any other event."""
    found = events.where("engine = 'gitlog' and verdict = 'passed'").select(
        F.coalesce(_text("$.trailer.env"), F.col("topic")).alias("env"),
        _text("$.trailer.what.service").alias("service"),
        _text("$.trailer.what.artifact").alias("artifact"),
        _text("$.trailer.status").alias("status"),
        _moment("$.trailer.when.start_ts").alias("started"),
        _moment("$.trailer.when.end_ts").alias("ended"),
        F.expr("try_cast(get_json_object(payload, '$.committed_at') as timestamp)").alias("committed"),
        _text("$.trailer.why.reason").alias("reason"),
        _text("$.trailer.why.ticket").alias("ticket"),
        "author",
        "topic",
        "height",
        F.col("entry_id").alias("commit"),
    )
    return found.where("service is not null and status is not null")


def deployment_history(found: DataFrame) -> DataFrame:
    """Return deployments with facts about later ones.

    `lead_time_s` counts from the payload's `committed_at`, where it has one, else from the deployment's start, to its
    end. `recovery_s` of a failed deployment counts to the end of the next success of that service and place.
    """
    # From the newest to the oldest: what comes later is then what went before, which Spark keeps as it goes. The same
    # frame looking forwards would be walked anew for every row.
    place = Window.partitionBy("topic", "env", "service").orderBy(F.desc("height"))
    ahead = place.rowsBetween(Window.unboundedPreceding, -1)
    stands = F.col("status").isin(*STANDING)
    later = F.last(F.when(stands, F.col("ended")), ignorenulls=True).over(ahead)
    stands_later = F.coalesce(F.max(stands.cast("int")).over(ahead), F.lit(0))
    return found.select(
        "*",
        (F.unix_timestamp("ended") - F.unix_timestamp(F.coalesce("committed", "started"))).alias(
            "lead_time_s"
        ),
        F.when(F.col("status") == "failed", F.unix_timestamp(later) - F.unix_timestamp("ended")).alias(
            "recovery_s"
        ),
        (stands & (stands_later == 0)).alias("current"),
    )


def deployment_measures(history: DataFrame) -> DataFrame:
    """The four measures of delivery, by place and service: frequency, lead time, failure rate, time to recover."""
    tried = history.where(F.col("status").isin("success", "failed", "revert", "override", "finalize"))
    spanned_s = F.unix_timestamp(F.max("ended")) - F.unix_timestamp(F.min("ended"))
    weeks = F.greatest(spanned_s / F.lit(float(WEEK_S)), F.lit(1.0))
    failures = F.sum(F.col("status").isin(*FAILED).cast("int"))
    return tried.groupBy("env", "service").agg(
        F.count("*").alias("deployments"),
        failures.alias("failures"),
        F.min("ended").alias("first"),
        F.max("ended").alias("last"),
        F.round(F.count("*") / weeks, 6).alias("per_week"),
        F.round(failures / F.count("*"), 6).alias("failure_rate"),
        F.expr("percentile(lead_time_s, 0.5)").alias("lead_time_median_s"),
        F.round(F.avg("recovery_s"), 3).alias("recovery_mean_s"),
    )


def comparable(table: DataFrame) -> DataFrame:
    """The table with VARIANT columns as texts, which can be compared."""
    return table.select(
        *(
            F.expr(f"to_json(`{field.name}`)").alias(field.name)
            if field.dataType.typeName() == "variant"
            else F.col(field.name)
            for field in table.schema.fields
        )
    )


def _text(path: str) -> Column:
    return F.expr(f"get_json_object(entry, '{path}')")


def _moment(path: str) -> Column:
    return F.expr(f"try_cast(get_json_object(entry, '{path}') as timestamp)")
