"""The processes: each does one thing, stops promptly on an event, and may be run many times over."""
