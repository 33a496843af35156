"""Declare the places of the inventory in the store."""
