"""Freezing: which jobs an item runs, each with all its matching variants applied."""
