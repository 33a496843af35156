"""Running builds as processes of this machine."""
