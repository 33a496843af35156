"""Decide which jobs run on which base, what happens to their builds, and what people read about them."""
