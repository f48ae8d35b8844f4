"""`ropewalk stream`: serve, proxy, subscribe."""
