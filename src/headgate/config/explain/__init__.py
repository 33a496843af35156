"""Telling people what a configuration comes to, where it comes from, and what a change makes of it."""
