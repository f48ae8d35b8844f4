"""Governance (S0 §9, S1 §6): proposals, signed approvals and outcomes as events, and their effects."""
