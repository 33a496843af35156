"""Implement the commands that need no running Headgate, because they read the repositories themselves."""
