"""The ledger (S4): typed, signed envelopes in sealed, linked blocks, and proofs a stranger can check.

envelope, binding   what is said, and evidence about it         rules, policy    whether it may be said here
block, proof        how it is sealed, and shown to be there     log, ticket      how it gets in
verify, steps       how all of it is checked again              trust            what a verifier believes before
"""
