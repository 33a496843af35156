"""Hold what the gate knows: changes, the state of a pipeline, what is beside it, and what it asks for."""
