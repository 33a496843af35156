"""Imitate Gitea on this machine, with a real HTTP server and real git repositories behind it."""
