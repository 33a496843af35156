"""Forges: where people propose changes, and see what became of them."""
