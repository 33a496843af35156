"""A GitLab on 127.0.0.1: its API, its webhooks, its git, and what it does that its description does not say."""
