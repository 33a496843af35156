"""Serve messages: the API over HTTP, an application of its own."""
