"""What each kind of stanza must be beyond its table of keys."""
