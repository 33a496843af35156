"""Compare queues of messages with other ways to process them."""
