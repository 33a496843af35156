"""Prepare the files and variables that belong to one playbook."""
