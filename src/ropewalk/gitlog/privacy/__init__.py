"""Private data: opaque pointers, privacy rules, secret detection and the sealed blob store."""
