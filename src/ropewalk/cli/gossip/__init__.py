"""`ropewalk gossip`: append, read, sync and serve."""
