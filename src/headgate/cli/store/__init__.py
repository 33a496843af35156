"""Open stores by URL, and implement `headgate store`: write the whole tree to a file, and restore it."""
