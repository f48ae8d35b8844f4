"""Blocks (S4 §2): sealing, links and forks."""
