"""The Spark data source: options, offsets, logs as rows and their columns."""
