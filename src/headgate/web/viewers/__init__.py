"""People who look on: what they see is made once, and handed out by a process of its own."""
