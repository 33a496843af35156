"""Decide which events and changes a pipeline takes, and what keeps a change from landing."""
