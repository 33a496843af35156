"""Messages in SQL, and the client of the message API."""
