"""Message brokers: the port that an adapter implements, the two loops over it, NATS JetStream and Redis Streams."""
