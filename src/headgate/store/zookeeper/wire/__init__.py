"""The protocol: frames, the login, one connection."""
