"""Test queues of messages and their workers, on real servers and in a simulated world."""
