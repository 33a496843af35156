"""Check what the tables of keys cannot express about each kind of stanza."""
