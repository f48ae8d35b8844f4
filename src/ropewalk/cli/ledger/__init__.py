"""`ropewalk ledger`, by purpose: channels, keys, evidence, proofs, storage and remote channels."""
