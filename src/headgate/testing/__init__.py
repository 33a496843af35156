"""Shipped with the product: what is needed to test it, and programs built on it."""
