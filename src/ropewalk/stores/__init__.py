"""Where bytes and heads live. Stores do the I/O; they implement ports the engines state."""
