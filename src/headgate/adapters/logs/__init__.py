"""Logs and artifacts that stay: where they are kept, how they get there, and how they are read and removed."""
