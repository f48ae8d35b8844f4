"""Evidence (S4 §6): binding, trust, certificates and verification."""
