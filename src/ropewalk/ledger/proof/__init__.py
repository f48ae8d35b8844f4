"""Proofs, trust files and the verification of channels."""
