"""Remote channels (S4 §5, §8, §9): negotiation, server, client and replicas."""
