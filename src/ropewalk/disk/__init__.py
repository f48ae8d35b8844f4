"""The durable file layer: fsync, rename, locks, LMDB tables, key files and repository paths."""
