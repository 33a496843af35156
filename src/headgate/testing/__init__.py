"""Provide test tools that Headgate and programs built on it share."""
