"""What holds backends to the model: a state machine, and real servers to run it on."""
