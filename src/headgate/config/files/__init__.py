"""Text to values that know where they stand, and checks of them against tables of keys."""
