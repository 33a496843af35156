"""Queues of messages, side by side with other ways to do it."""
