"""Report errors to the person in front of the program; for a missing package, name the extra that brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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


class MissingPackage(LackingError):
    """Report a package that is not installed, and the extra that brings it."""


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Raise MissingPackage where an import inside finds no package of somebody else, or one that cannot be loaded; it
    names `what` needs it."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if not extra or package == "headgate":
            raise  # a defect of ours
        absent = isinstance(error, ModuleNotFoundError)
        why = f"the package {package} is not installed" if absent else str(error)
        raise MissingPackage(f"{what} needs pip install 'headgate[{extra}]' ({why})") from error
