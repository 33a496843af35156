"""Read files into values that know their lines, and check them against tables of keys."""
