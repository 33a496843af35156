"""Define the gate's data: changes, the state of a pipeline, its surroundings, and its requests."""
