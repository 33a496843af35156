"""Check backends against the model, with a state machine and real servers."""
