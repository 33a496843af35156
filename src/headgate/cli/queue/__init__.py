"""`headgate queue`: queues of messages, the server's side and the workers' side."""
