"""A pipeline's state as it lies in the store."""
