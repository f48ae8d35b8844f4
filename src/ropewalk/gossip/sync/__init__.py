"""Sync as a state machine: questions, answers and their wire form."""
