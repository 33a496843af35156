"""Define the facts that forges report about changes, and for each driver the keys that select changes by them."""
