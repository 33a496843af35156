"""Identify people by their tokens."""
