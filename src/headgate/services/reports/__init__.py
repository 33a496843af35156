"""Reports of pipelines on their way to their receivers: one outbox for each connection."""
