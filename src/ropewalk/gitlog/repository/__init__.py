"""Repositories for programs: open, append with group commit, track heads, recover displaced events."""
