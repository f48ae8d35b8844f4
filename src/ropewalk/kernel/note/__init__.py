"""Signed notes and checkpoints in the C2SP forms, and the keys that sign them."""
