"""Objects, their definitions and permissions, and searches for them. Pure: no store, no clock, no randomness."""
