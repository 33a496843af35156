"""Define the tree of errors, and report to people what is wrong in one line.

`HeadgateError` is above every error that Headgate defines, except the signals of job authors: those in `queueing`, and
`JobExit`. An error that callers catch as a `ValueError`, `LookupError` or `OSError` derives from both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class HeadgateError(Exception):
    """Define the base class of all errors of Headgate."""


class ConfigurationError(HeadgateError):
    """Report configuration that cannot be used."""


class RepositoryError(HeadgateError):
    """Report something that git, or the files of a repository, do not allow."""


class ForgeError(HeadgateError):
    """Report a forge's refusal, or a message from it that cannot be used."""


class CloudError(HeadgateError):
    """Report machines, images or files that a provider does not give."""


class ExecutionError(HeadgateError):
    """Report why a playbook or an image build cannot run, or has to end."""


class IdentityError(HeadgateError):
    """Report a caller who cannot be identified, or an identity provider that does not answer."""


class UserError(HeadgateError):
    """Report an error to a person in one line, without a traceback: what is wrong, where, and what to do."""

    status = 1
    """Exit status of the program that reports this error."""


class NoSettings(UserError):
    """Report that no settings file was named, and none is in the usual places."""


class AwayError(UserError):
    """Report that a service does not answer now; the same command may succeed later."""

    # EX_TEMPFAIL of sysexits.h: scripts may try again.
    status = 75


class LackingError(UserError):
    """Report something that must first be installed on this machine."""

    # EX_UNAVAILABLE of sysexits.h: trying again does not help.
    status = 69


class MissingPackage(LackingError):
    """Report a package that is not installed, and the extra that installs it."""


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Raise MissingPackage, which says that `what` needs the extra, if an import inside the context fails because a
    third-party package is missing or cannot be loaded."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if not extra or package == "headgate":
            raise  # our own module is missing: a bug, which no extra repairs
        absent = isinstance(error, ModuleNotFoundError)
        why = f"the package {package} is not installed" if absent else str(error)
        raise MissingPackage(f"{what} needs pip install 'headgate[{extra}]' ({why})") from error
