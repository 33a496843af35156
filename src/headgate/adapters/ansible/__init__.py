"""Versions of Ansible beside Headgate: each with a Python of its own, for the jobs that ask for it."""
