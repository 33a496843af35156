"""What happens in a gate is told to queues of messages: kept with what it tells of, then posted, in order."""
