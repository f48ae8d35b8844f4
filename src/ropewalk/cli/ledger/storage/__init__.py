"""`ropewalk ledger` commands for archives, payloads, replay, status and repair."""
