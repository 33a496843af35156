"""Show the status to viewers: it is made once for all of them, and a process of its own hands it out."""
