"""Publish the events of a gate to message queues: stored with what causes them, then posted in order."""
