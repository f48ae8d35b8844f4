"""Versions of the envelope format (S4 §8, §16) and their lifecycle."""
