"""Proposed configuration, judged at once or apart."""
