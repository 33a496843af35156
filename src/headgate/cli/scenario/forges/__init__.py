"""The demonstration on stand-ins for forges."""
