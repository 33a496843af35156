"""A tree of small values with atomic commits, sessions and watches; it knows trees, not gates."""
