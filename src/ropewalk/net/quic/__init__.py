"""QUIC: connections with mutual certificates, whose streams are pipes."""
