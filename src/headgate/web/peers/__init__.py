"""What a server grants to whoever connects: so many connections, so much time, requests of a form."""
