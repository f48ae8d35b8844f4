"""`ropewalk bridge`: brokers and webhooks."""
