"""Simulate a day of a large organisation, its projects, changes and people, for measurements and for a small test."""
