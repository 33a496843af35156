"""The gate, pure: what happened changes the state, the state says what to do next."""
