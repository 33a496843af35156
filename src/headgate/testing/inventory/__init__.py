"""Test the inventory with random calls and with faults."""
