"""Commands that need no running Headgate: the repositories are enough."""
