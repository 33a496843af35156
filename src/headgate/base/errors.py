"""Errors for the person in front of the program."""

from __future__ import annotations


class UserError(Exception):
    """Report an error to a person in one line, without a traceback: what is wrong, where, and what to do."""

    status = 1
    """Exit status of the program that reports this error."""


class AwayError(UserError):
    """Report that somebody does not answer now; the same command may succeed later."""

    status = 75


class LackingError(UserError):
    """Report something that has to be installed on this machine first."""

    status = 69
