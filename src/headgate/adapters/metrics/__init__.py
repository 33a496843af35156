"""Measure this machine and this process, for monitoring and for limits on the process's own work."""
