"""Queues of messages and their workers, for tests: real servers, a simulated world."""
