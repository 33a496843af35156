"""The scheduler: moves events, keeps configurations, runs the turns of pipelines."""
