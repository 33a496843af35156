"""Forward events, store configurations, and run the turns of pipelines."""
