"""Decide what the gate does, without side effects: events change the state, which determines the next actions."""
