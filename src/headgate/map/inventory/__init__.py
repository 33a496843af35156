"""Places of the inventory in the store."""
