"""Decide which jobs run on which base, what becomes of their builds, and what people read of them."""
