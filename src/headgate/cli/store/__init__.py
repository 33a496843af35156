"""Stores by their URLs, and `headgate store`: the whole tree to a file and back."""
