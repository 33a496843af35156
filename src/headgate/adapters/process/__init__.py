"""Run builds as processes of this machine."""
