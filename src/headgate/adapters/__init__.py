"""Connect Headgate with the outside world: git, processes, databases."""
