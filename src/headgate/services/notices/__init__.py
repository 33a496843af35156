"""Publish the events of a gate to message queues: notices are stored with the events, then posted in order."""
