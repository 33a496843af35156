"""Test the inventory with calls nobody would make, and with faults."""
