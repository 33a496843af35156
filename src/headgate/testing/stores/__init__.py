"""Hold backends to the model, with a state machine and real servers to run it on."""
