"""Machines of OpenStack."""
