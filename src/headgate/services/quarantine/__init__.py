"""Set aside things that cannot be handled, so that the rest continues."""
