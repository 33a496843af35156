"""Implement the commands: the only place that reads their arguments and the settings."""
