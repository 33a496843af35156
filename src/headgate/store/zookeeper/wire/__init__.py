"""Speak ZooKeeper's protocol: frames, the login, one connection."""
