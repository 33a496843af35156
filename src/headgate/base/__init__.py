"""Provide what all other packages depend on: ids, readable errors, supervised tasks, pipes, files."""
