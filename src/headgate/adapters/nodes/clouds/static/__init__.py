"""Machines that are there anyway, as a provider lists them."""
