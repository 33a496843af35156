"""What there is to see at a repository: names, comparisons, and when to look."""
