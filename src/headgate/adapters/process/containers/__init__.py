"""Provide images, and containers in which jobs run."""
