"""Objects, their definitions and permissions, and what finds them.  Pure: no store, no clock, no chance."""
