"""Test the port of forges with a separate driver."""
