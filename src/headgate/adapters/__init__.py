"""The outside world: git, processes, databases."""
