"""Ingest: envelopes in, sealed blocks and receipts out."""
