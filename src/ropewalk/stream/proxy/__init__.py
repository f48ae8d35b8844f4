"""Federation (S2): a stream served again from an upstream."""
