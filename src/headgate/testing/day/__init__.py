"""A day of a large organisation: its projects, its changes and its people, for measurements and for a small test."""
