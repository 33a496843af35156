"""Packages that only some installations have, and the extras of Headgate that bring them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headgate.base.errors import LackingError


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
