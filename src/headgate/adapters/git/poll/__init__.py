"""Observe a repository: the names of its refs, comparisons, and when to poll."""
