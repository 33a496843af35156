"""Drive GitLab: gitlab.com and self-managed instances."""
