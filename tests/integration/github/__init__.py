"""Test GitHub: its stand-in, and the code that talks to it."""
