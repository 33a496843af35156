"""Decide which events and changes a pipeline accepts, and what keeps a change from landing."""
