"""The state of a pipeline as it is stored."""
