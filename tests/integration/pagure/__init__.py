"""Test the driver for Pagure against its stand-in."""
