"""Implement `headgate queue`: message queues, with the commands for servers and for workers."""
