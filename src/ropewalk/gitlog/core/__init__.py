"""Pure rules of git logs: envelopes, commits, layouts, planning, reading and verification."""
