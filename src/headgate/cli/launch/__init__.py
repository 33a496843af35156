"""Start Headgate: all components in one process, or one kind in each."""
