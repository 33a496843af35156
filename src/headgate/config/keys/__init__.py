"""The keys of every stanza: what their values may be, their defaults, how they merge.  Tables, no code."""
