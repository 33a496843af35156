"""Load the certificate authorities that a client trusts."""

from __future__ import annotations

import ssl
from pathlib import Path

from headgate.base.certificates import add_authorities
from headgate.base.errors import UserError


def trusting(*authorities: Path) -> ssl.SSLContext | None:
    """Return a context that trusts the system's authorities and these PEM files; None if no files are given. Raise
    UserError."""
    if not authorities:
        return None
    found = ssl.create_default_context()
    for file in authorities:
        try:
            add_authorities(found, file)
        except OSError as error:
            raise UserError(f"{file}: cannot read certificates from it: {error}") from error
    # An operator may name an intermediate authority or the server's own certificate, without the root above it.
    found.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return found
