"""Machines under random schedules and deaths."""
