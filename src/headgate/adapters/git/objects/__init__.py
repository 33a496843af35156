"""Merging commits, and asking what they are made of."""
