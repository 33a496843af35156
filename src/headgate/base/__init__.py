"""Provide what all other packages depend on: ids, errors for people, supervised tasks, pipes, files."""
