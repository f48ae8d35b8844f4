"""Seeded worlds: many peers, a faulty network, and checkers that know nothing of either."""
