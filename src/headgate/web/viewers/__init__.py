"""Show the status to viewers: it is computed once for all of them, and a separate process sends it."""
