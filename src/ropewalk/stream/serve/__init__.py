"""Stream servers and clients: sockets, repositories as sources, the live page."""
