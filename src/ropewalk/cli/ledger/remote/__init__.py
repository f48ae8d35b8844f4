"""`ropewalk ledger` commands for remote channels, mailboxes and enclaves."""
