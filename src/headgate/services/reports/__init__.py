"""What pipelines report, on its way to whoever takes reports: one outbox for each connection."""
