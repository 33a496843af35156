"""Serve pages, the REST API, and live logs, from the mirror and the history."""
