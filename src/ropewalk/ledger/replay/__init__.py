"""Replay (S4 §11): reducers, snapshots and the guard against nondeterminism."""
