"""Define objects, their definitions, permissions and searches. Pure: no store, no clock, no randomness."""
