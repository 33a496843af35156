"""The driver of GitLab against a GitLab of our own."""
