"""Measure this machine and this process, for people and for limits on the process's own work."""
