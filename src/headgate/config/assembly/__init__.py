"""Assembling a layout: what is added, what is refused, what refers to nothing."""
