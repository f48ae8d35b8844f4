"""The disposable index of a channel: rows, files and the check against the log."""
