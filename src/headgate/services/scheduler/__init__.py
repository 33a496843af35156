"""Move events, keep configurations, run the turns of pipelines."""
