"""Webhooks: events of a log delivered to HTTP endpoints, signed, retried and kept as dead letters if that fails."""
