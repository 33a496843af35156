"""Proposed configuration, judged immediately or in the background."""
