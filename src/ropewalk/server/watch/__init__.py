"""Signals, alerts and schedules."""
