"""Provide the only access to files that a job can write."""
