"""Commands: the only place that reads arguments and the environment."""
