"""A tree of small values with atomic commits, sessions and watches; it does not depend on the gate."""
