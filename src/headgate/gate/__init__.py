"""The gate, without side effects: events change the state, and the state determines the next actions."""
