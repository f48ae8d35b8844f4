"""Mailboxes (S4 §5): envelopes through shared memory, and the enclave bridge."""
