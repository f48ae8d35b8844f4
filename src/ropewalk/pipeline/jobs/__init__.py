"""Spark jobs: ingest, verify, replay, export, compact and health."""
