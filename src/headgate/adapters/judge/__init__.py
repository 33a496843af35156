"""Judge proposed configuration apart from the loop that serves everybody."""
