"""Look at a repository: names, comparisons, and when to look."""
