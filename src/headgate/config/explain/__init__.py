"""Explain a configuration to people: its result, where each part comes from, and what a change alters."""
