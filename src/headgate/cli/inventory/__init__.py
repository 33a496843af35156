"""Implement `headgate inventory`: the service, and commands that talk to it."""
