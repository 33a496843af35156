"""Clouds that drivers of machines are tested on, each behind a proxy that makes it fail."""
