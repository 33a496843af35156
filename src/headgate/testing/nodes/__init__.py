"""Simulate machines under random schedules and deaths."""
