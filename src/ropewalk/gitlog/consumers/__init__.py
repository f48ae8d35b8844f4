"""Consumer groups and their cursors."""
