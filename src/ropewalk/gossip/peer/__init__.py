"""Connections between peers: transports, serving and sync sessions."""
