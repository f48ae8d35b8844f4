"""Carries bytes between peers and knows nothing of their meaning."""
