"""Handles that `ropewalk.open` hands out: one log each, with the same verbs in every engine."""
