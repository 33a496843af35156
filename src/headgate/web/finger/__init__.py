"""Live logs of builds, over finger."""
