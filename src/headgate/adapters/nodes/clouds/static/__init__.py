"""Provide existing machines, as a provider lists them."""
