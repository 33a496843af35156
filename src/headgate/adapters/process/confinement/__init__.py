"""Keep builds apart: each has a user, a network and a view of the files."""
