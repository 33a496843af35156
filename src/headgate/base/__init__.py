"""Provide what all other packages depend on: ids, clocks, errors for people, supervised tasks."""
