"""`git shiplog` journals: read, import, export and verify their signatures."""
