"""Test the driver for Gitea and Forgejo against its stand-in."""
