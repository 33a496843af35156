"""Provide the machines of jobs."""
