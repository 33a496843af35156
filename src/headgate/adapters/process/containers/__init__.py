"""Provide images, and containers of them that jobs run in."""
