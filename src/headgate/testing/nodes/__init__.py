"""Simulate machines under random schedules and crashes."""
