"""The demonstration with stand-ins for forges."""
