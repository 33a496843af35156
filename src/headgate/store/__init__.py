"""Store a tree of small values, with atomic commits, sessions and watches, without depending on the gate."""
