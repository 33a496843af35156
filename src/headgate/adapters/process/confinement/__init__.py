"""Keep builds apart: each has its own user, network and view of the files."""
