"""Machines that are made on demand, and deleted when nobody needs them."""
