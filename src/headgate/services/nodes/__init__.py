"""Provide machines for builds: executors request them; a launcher claims, prepares and cleans them."""
