"""Freeze: compute the jobs of an item, each with all its matching variants applied."""
