"""The HTML report of a warehouse."""
