"""Envelopes (S4 §3, §4, §8): fields, canonical form, id, building and adapting."""
