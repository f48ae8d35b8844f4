"""Commands of the server: serve, auth, watch, rpc."""
