"""Drivers of forges: each is a package beside this one, and a row in `registry`."""
