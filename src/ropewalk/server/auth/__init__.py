"""Identities and rights: one decision for every transport."""
