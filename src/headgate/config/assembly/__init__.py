"""Putting a layout together: what is added, what is refused, what refers to nothing (config-language §7.1, §9.2)."""
