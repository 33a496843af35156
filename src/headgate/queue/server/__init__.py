"""The message server: the API over HTTP, an application of its own."""
