"""Bundles (S4 §12): a range of blocks with its proofs in one file."""
