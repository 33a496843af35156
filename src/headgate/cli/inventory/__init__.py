"""`headgate inventory`: the service, and what talks to it."""
