"""Implement `headgate check`: find everything that is wrong with a configuration before it takes effect."""
