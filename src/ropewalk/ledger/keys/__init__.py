"""Keys of a channel (S4 §13): statements, validity, history, approvals and rotation."""
