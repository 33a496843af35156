"""The repository that a mirror is a copy of."""
