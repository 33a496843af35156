"""Manage the keys of projects, and encrypt values with them."""
