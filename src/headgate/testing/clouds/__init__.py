"""Provide clouds to test drivers of machines on, each behind a proxy that makes it fail."""
