"""Gitea and Forgejo: pull requests seen, reported on and merged over their REST API."""
