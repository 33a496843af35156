"""Errors for the person in front of the program."""

from __future__ import annotations


class UserError(Exception):
    """Said in one line, without a traceback: what is wrong, where, and what to do."""

    status = 1
    """Exit status of the program."""
