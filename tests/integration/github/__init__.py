"""GitHub: the stand-in for it, and what talks with it."""
