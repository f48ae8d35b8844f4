"""Transparency logs: checkpoints, tiles, receipts and witnesses in the C2SP and COSE forms."""
