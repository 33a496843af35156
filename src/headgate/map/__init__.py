"""Declare every place in the store, once; the store has no other places."""
