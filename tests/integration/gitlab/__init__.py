"""Test the driver for GitLab against its stand-in."""
