"""Drive Gitea and Forgejo: watch, report on and merge pull requests over their REST API."""
