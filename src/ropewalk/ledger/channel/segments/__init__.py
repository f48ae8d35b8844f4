"""Segment files: the format, the reader, the writer and packing."""
