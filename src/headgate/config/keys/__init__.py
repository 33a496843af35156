"""Declare the keys of every stanza: their values, their defaults, and how variants merge them. Tables, no code."""
