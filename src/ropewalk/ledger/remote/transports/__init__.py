"""How a session travels: gRPC and QUIC, each with its client and its server."""
