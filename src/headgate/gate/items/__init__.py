"""Enqueue items, keep them up to date, land them, and remove them."""
