"""Test many changes in one gate: only intended data grows with their number."""
