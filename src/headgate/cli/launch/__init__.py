"""Headgate at work: all components in one process, or one kind in each."""
