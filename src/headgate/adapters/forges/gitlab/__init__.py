"""GitLab, gitlab.com and instances of one's own."""
