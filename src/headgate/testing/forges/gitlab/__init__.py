"""Imitate GitLab on 127.0.0.1: its API, its webhooks, its git, and behaviour that its description does not mention."""
