"""Verification of git logs (pure): one event, a whole log, notes, anchors and signed heads."""
