"""Containers: images, and jobs that run in one."""
