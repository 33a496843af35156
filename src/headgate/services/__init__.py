"""Implement the components: each does one thing, stops promptly on an event, and may run in any number."""
