"""Drive OpenStack."""
