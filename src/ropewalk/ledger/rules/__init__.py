"""The eight rules of S4 §7 and the policy (S4 §10)."""
