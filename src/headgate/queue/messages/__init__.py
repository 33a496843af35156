"""Keep messages in SQL, and call the message API."""
