"""Commands over git logs: shiplog, messages, consumer, heads, pointer, mirror."""
