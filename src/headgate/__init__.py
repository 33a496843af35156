"""Headgate keeps the heads of branches green: it lands only what passed, merged with everything ahead of it."""

__version__ = "0.2.0"
