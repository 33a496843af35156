"""Imitate Pagure, with a real HTTP server and real git repositories behind it."""
