"""A GitHub on 127.0.0.1: its API, its webhooks, its git, and what its description does not say."""
