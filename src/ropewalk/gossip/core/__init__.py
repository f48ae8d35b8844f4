"""The signed graph (S3): messages, ids, the log, its tree, rules and verification."""
