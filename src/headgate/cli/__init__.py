"""Implement the commands: the only place that reads arguments and the environment."""
