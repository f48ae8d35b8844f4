"""Subscriptions and proxies as state machines, without I/O (S2)."""
