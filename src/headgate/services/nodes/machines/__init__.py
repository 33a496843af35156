"""Machines that are made when they are needed, and taken away when they are not."""
