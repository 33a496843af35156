"""Provide machines for builds: executors ask, a launcher claims them from the inventory, prepares and cleans them."""
