"""Channels on disk: segments, index, settings, payloads and maintenance."""
